//! Builds statements from a definition's identifiers and literals, always quoted. A caller's arguments are parameters,
//! except a declared status and the name of an existing column, which become quoted text.

/// Makes a statement from a template: replaces each `{name}` by the text given for it.
pub fn fill(template: &str, parts: &[(&str, &str)]) -> String {
    let mut sql = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        sql.push_str(before);
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        let part = parts.iter().find(|(n, _)| *n == name);
        sql.push_str(part.map_or("", |(_, text)| text));
        rest = after;
    }
    sql.push_str(rest);
    sql
}

/// A quoted identifier.
pub fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A quoted literal that does not depend on standard_conforming_strings.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!(" E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

/// The SQL expression `ARRAY[...]` with these values as quoted literals. `of` is the type of the elements.
pub fn array<'a>(values: impl IntoIterator<Item = &'a str>, of: &str) -> String {
    let literals: Vec<_> = values.into_iter().map(literal).collect();
    format!("ARRAY[{}]::{of}[]", literals.join(", "))
}

/// The condition that the column's text is one of these texts, compared as bytes.
pub fn is_any<'a>(column: &str, values: impl IntoIterator<Item = &'a str>) -> String {
    format!(
        "({column}::pg_catalog.text COLLATE pg_catalog.\"C\") OPERATOR(pg_catalog.=) ANY ({})",
        array(values, "pg_catalog.text")
    )
}
