//! The list of once.janitor_databases.

/// The names between the commas, without spaces around them. A name in double quotes is taken literally; a double quote
/// inside the name is written twice. Empty names and repetitions are left out.
pub fn parse(list: &[u8]) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut quoted = false;
    for name in list.split(|byte| {
        quoted ^= *byte == b'"';
        *byte == b',' && !quoted
    }) {
        let name = match name.trim_ascii() {
            [b'"', inside @ .., b'"'] => unquoted(inside),
            plain => plain.to_vec(),
        };
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Turns each doubled quote into one.
fn unquoted(inside: &[u8]) -> Vec<u8> {
    let mut is_first = false;
    let is_kept = |byte: &u8| {
        is_first = *byte == b'"' && !is_first;
        !is_first
    };
    inside.iter().copied().filter(is_kept).collect()
}
