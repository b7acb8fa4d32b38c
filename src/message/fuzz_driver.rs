//! Test support: runs fuzz functions on a stable toolchain with a seeded mutator over a committed corpus.
//!
//! Role: what `cargo fuzz` does by hand, CI does through [`Driver`], so that each decoder sees many inputs on every run.
//! Not used by any program. It reads corpus files and one environment variable; a finding prints the input as hex.

use std::path::Path;

/// Environment variable with the number of executions for each target.
pub const EXECUTIONS_VARIABLE: &str = "FUZZ_EXECUTIONS";
/// Executions when the variable is not set.
pub const DEFAULT_EXECUTIONS: u64 = 20_000;
/// Inputs never grow over this, in bytes.
const MAX_INPUT_BYTES: usize = 4096;

/// A seeded source of mutated inputs for one target.
pub struct Driver {
    corpus: Vec<Vec<u8>>,
    tokens: Vec<Vec<u8>>,
    random: Random,
}

impl Driver {
    /// A driver that starts from `seeds` (at least the empty input is added) and replays from `seed`.
    #[must_use]
    pub fn new(seed: u64, seeds: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut corpus: Vec<Vec<u8>> = seeds.into_iter().collect();
        corpus.push(Vec::new());
        for input in &mut corpus {
            input.truncate(MAX_INPUT_BYTES);
        }
        Self { corpus, tokens: Vec::new(), random: Random(seed | 1) }
    }

    /// Texts that the mutator puts into inputs: key words of the format.
    #[must_use]
    pub fn with_tokens(mut self, tokens: &[&[u8]]) -> Self {
        self.tokens = tokens.iter().map(|token| token.to_vec()).collect();
        self
    }

    /// Runs `target` on every corpus input and then on `executions` mutated ones.
    pub fn run(&mut self, name: &str, executions: u64, target: fn(&[u8])) {
        let mut input = Vec::with_capacity(MAX_INPUT_BYTES);
        for seed in &self.corpus {
            execute(name, target, seed);
        }
        for _ in 0..executions {
            self.mutate(&mut input);
            execute(name, target, &input);
        }
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let random = &mut self.random;
        input.clear();
        input.extend_from_slice(&self.corpus[random.below(self.corpus.len())]);
        for _ in 0..=random.below(5) {
            let at = random.below(input.len() + 1);
            match random.below(10) {
                0 if !input.is_empty() => input[at.min(at.wrapping_sub(1))] ^= 1 << random.below(8),
                1 if at < input.len() => input[at] = random.next() as u8,
                2 => put_number(input, at, random),
                3 => drop(input.drain(at..(at + 1 + random.below(16)).min(input.len()).max(at))),
                4 => input.truncate(at),
                5 => {
                    let bytes = random.next().to_le_bytes();
                    insert(input, at, &bytes[..1 + random.below(7)]);
                }
                6 if !self.tokens.is_empty() => insert(input, at, &self.tokens[random.below(self.tokens.len())]),
                7 => {
                    let other = &self.corpus[random.below(self.corpus.len())];
                    let from = random.below(other.len() + 1);
                    let len = random.below(32).min(other.len() - from);
                    insert(input, at, &other[from..from + len]);
                }
                8 => {
                    let end = (at + random.below(16)).min(input.len());
                    let copy: Vec<u8> = input[at..end].to_vec();
                    insert(input, end, &copy);
                }
                _ => swap(input, at, random),
            }
        }
        input.truncate(MAX_INPUT_BYTES);
    }
}

/// Executions asked for by [`EXECUTIONS_VARIABLE`], else [`DEFAULT_EXECUTIONS`].
#[must_use]
pub fn executions() -> u64 {
    std::env::var(EXECUTIONS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_EXECUTIONS)
}

/// The files of a corpus folder, in the order of their names; empty when there is no such folder. Files that end in
/// `.hex` are read as hexadecimal text (white space ignored), others as they are.
///
/// # Panics
/// A file cannot be read, or a `.hex` file is none.
#[must_use]
pub fn corpus(folder: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .map(|entries| entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect())
        .unwrap_or_default();
    paths.sort();
    paths
        .iter()
        .filter(|path| path.is_file())
        .map(|path| {
            let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if path.extension().is_some_and(|extension| extension == "hex") {
                from_hex(&bytes).unwrap_or_else(|| panic!("{} is not hexadecimal", path.display()))
            } else {
                bytes
            }
        })
        .collect()
}

/// Bytes of a hexadecimal text; white space and what follows a `#` on a line are ignored.
#[must_use]
pub fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .split(|&byte| byte == b'\n')
        .flat_map(|line| line.split(|&byte| byte == b'#').next().unwrap_or_default())
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|&byte| char::from(byte).to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Prints the input when the target panics.
struct Report<'a> {
    name: &'a str,
    input: &'a [u8],
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.input.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("fuzz target {} failed on {} bytes: {hex}", self.name, self.input.len());
        }
    }
}

fn execute(name: &str, target: fn(&[u8]), input: &[u8]) {
    let report = Report { name, input };
    target(input);
    drop(report);
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if input.len() + bytes.len() <= MAX_INPUT_BYTES {
        input.splice(at..at, bytes.iter().copied());
    }
}

/// Overwrites 1, 2, 4 or 8 bytes with a number at the edge of something.
fn put_number(input: &mut [u8], at: usize, random: &mut Random) {
    const EDGES: [u64; 12] = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFF_FFFF, 0x8000_0000, u64::MAX];
    let width = 1 << random.below(4);
    let near = (random.below(5) as u64).wrapping_sub(2);
    let value = match random.below(3) {
        0 => input.len() as u64,
        _ => EDGES[random.below(EDGES.len())],
    };
    let bytes = value.wrapping_add(near).to_be_bytes();
    if let Some(place) = input.get_mut(at..at + width) {
        place.copy_from_slice(&bytes[8 - width..]);
    }
}

fn swap(input: &mut [u8], at: usize, random: &mut Random) {
    let other = random.below(input.len() + 1);
    if at < input.len() && other < input.len() {
        input.swap(at, other);
    }
}

/// xorshift64*: good enough to pick mutations, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `limit`, which is at least 1.
    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_texts() {
        assert_eq!(from_hex(b"00 ff # a comment\n1f"), Some(vec![0, 0xff, 0x1f]));
        assert_eq!(from_hex(b"0"), None);
        assert_eq!(from_hex(b"xy"), None);
    }

    #[test]
    #[should_panic(expected = "found")]
    fn finds_what_is_two_mutations_away() {
        fn target(data: &[u8]) {
            assert!(!(data.first() == Some(&b'Z') && data.len() == 3), "found");
        }
        Driver::new(7, [b"abcdef".to_vec()]).with_tokens(&[b"Z"]).run("self", 200_000, target);
    }
}
