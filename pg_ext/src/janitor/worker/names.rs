//! The list of once.janitor_databases.

/// The names between the commas, without spaces around them. A name in double quotes is taken literally, with its quotes
/// doubled. Empty names and repetitions are left out.
pub fn parse(list: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut name = DatabaseName::default();
    let mut quoted = false;
    let mut bytes = list.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if quoted && bytes.next_if_eq(&b'"').is_some() => name.push(byte, true),
            b'"' => quoted = !quoted,
            b',' if !quoted => std::mem::take(&mut name).add_to(&mut names),
            _ => name.push(byte, quoted),
        }
    }
    name.add_to(&mut names);
    names
}

#[derive(Default)]
struct DatabaseName {
    bytes: Vec<u8>,
    /// Length without the space at its end.
    kept: usize,
}

impl DatabaseName {
    fn push(&mut self, byte: u8, quoted: bool) {
        let space = !quoted && byte.is_ascii_whitespace();
        if !space || !self.bytes.is_empty() {
            self.bytes.push(byte);
        }
        if !space {
            self.kept = self.bytes.len();
        }
    }

    fn add_to(mut self, names: &mut Vec<Vec<u8>>) {
        self.bytes.truncate(self.kept);
        if !self.bytes.is_empty() && !names.contains(&self.bytes) {
            names.push(self.bytes);
        }
    }
}
