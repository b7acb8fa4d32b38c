//! Drawing: numbers, keys, sizes and bodies, from a seed.
//!
//! Role: what varies from request to request. Invariants: the same seed draws the same; a draw allocates nothing and takes
//! constant time, however many keys there are. It knows no message.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Bytes from which bodies are cut.
const POOL_BYTES: usize = 1 << 20;
/// Largest body that can be asked for: what a broker takes by default.
pub const MAX_BODY_BYTES: u32 = 4 << 20;

/// A small generator (xorshift, multiplied); not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator from a seed; seeds that are close give sequences that are not.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        let mixed = (seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        Random((mixed ^ (mixed >> 31)) | 1)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound` (0 for a bound of 0).
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u32
    }

    /// A number from 0 up to 1, without it.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How keys (topics, tags) are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Each as often as any other.
    Uniform,
    /// The n-th in proportion to 1 / n^exponent.
    Zipf(f64),
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("uniform", "") => Ok(Distribution::Uniform),
            ("zipf", "") => Ok(Distribution::Zipf(1.0)),
            ("zipf", exponent) => match exponent.parse::<f64>() {
                Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(Distribution::Zipf(exponent)),
                _ => Err(format!("the exponent {exponent:?} is no number from 0 to 10")),
            },
            _ => Err("uniform, zipf or zipf:EXPONENT is needed".into()),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

/// Draws one of n keys by a distribution: two tables, one draw and one comparison (the alias method).
#[derive(Clone, Debug)]
pub struct Keys {
    count: u32,
    /// For each column: below this part of 2^32 the column itself, else its alias. Empty for a uniform choice.
    columns: Arc<[(u32, u32)]>,
}

impl Keys {
    /// Keys 0..count; at least one.
    #[must_use]
    pub fn new(count: u32, distribution: Distribution) -> Keys {
        let count = count.max(1);
        let columns = match distribution {
            Distribution::Uniform => Vec::new(),
            Distribution::Zipf(exponent) => {
                let weights: Vec<f64> = (1..=count).map(|n| f64::from(n).powf(-exponent)).collect();
                alias_columns(&weights)
            }
        };
        Keys { count, columns: columns.into() }
    }

    /// The next key.
    pub fn draw(&self, random: &mut Random) -> u32 {
        if self.count == 1 {
            return 0;
        }
        let column = random.below(self.count);
        match self.columns.get(column as usize) {
            None => column,
            Some((limit, alias)) => {
                if random.next_u64() as u32 <= *limit {
                    column
                } else {
                    *alias
                }
            }
        }
    }
}

/// Columns of equal area that hold two weights each.
fn alias_columns(weights: &[f64]) -> Vec<(u32, u32)> {
    let scale = weights.len() as f64 / weights.iter().sum::<f64>();
    let mut heights: Vec<f64> = weights.iter().map(|w| w * scale).collect();
    let mut columns: Vec<(u32, u32)> = (0..weights.len() as u32).map(|n| (u32::MAX, n)).collect();
    let (mut low, mut high): (Vec<usize>, Vec<usize>) = (0..weights.len()).partition(|n| heights[*n] < 1.0);
    while let (Some(short), Some(tall)) = (low.pop(), high.pop()) {
        columns[short] = ((heights[short] * f64::from(u32::MAX)) as u32, tall as u32);
        heights[tall] -= 1.0 - heights[short];
        if heights[tall] < 1.0 { low.push(tall) } else { high.push(tall) }
    }
    columns
}

/// Sizes of bodies, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Always the same.
    Fixed(u32),
    /// Any of these, each as often.
    List(Arc<[u32]>),
    /// Anything between, both included.
    Range(u32, u32),
}

impl Sizes {
    /// The next size.
    pub fn draw(&self, random: &mut Random) -> u32 {
        match self {
            Sizes::Fixed(size) => *size,
            Sizes::List(sizes) => sizes[random.below(sizes.len() as u32) as usize],
            Sizes::Range(low, high) => low + random.below(high - low + 1),
        }
    }

    /// The smallest.
    #[must_use]
    pub fn min(&self) -> u32 {
        match self {
            Sizes::Fixed(size) | Sizes::Range(size, _) => *size,
            Sizes::List(sizes) => sizes.iter().copied().min().unwrap_or(0),
        }
    }

    /// The largest.
    #[must_use]
    pub fn max(&self) -> u32 {
        match self {
            Sizes::Fixed(size) | Sizes::Range(_, size) => *size,
            Sizes::List(sizes) => sizes.iter().copied().max().unwrap_or(0),
        }
    }

    /// The mean.
    #[must_use]
    pub fn mean(&self) -> u64 {
        match self {
            Sizes::Fixed(size) => u64::from(*size),
            Sizes::Range(low, high) => (u64::from(*low) + u64::from(*high)) / 2,
            Sizes::List(sizes) => sizes.iter().map(|s| u64::from(*s)).sum::<u64>() / sizes.len().max(1) as u64,
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        let size = |text: &str| match parse_bytes(text)? {
            size if size <= u64::from(MAX_BODY_BYTES) => Ok(size as u32),
            size => Err(format!("{size} bytes are more than a message may have ({MAX_BODY_BYTES})")),
        };
        if let Some((low, high)) = text.split_once('-') {
            let (low, high) = (size(low)?, size(high)?);
            return if low <= high {
                Ok(Sizes::Range(low, high))
            } else {
                Err(format!("{text:?} ends before it begins"))
            };
        }
        let sizes = text.split(',').map(size).collect::<Result<Vec<u32>, String>>()?;
        Ok(if let [one] = sizes[..] { Sizes::Fixed(one) } else { Sizes::List(sizes.into()) })
    }
}

/// Reads a number of bytes: `128`, `16k`, `16KiB`, `2g`; units are powers of 1024.
///
/// # Errors
/// It is none, or does not fit.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("{text:?} is no number of bytes")),
    };
    let number = text[..digits].parse::<u64>().map_err(|_| format!("{text:?} is no number of bytes"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too much"))
}

/// Bytes of bodies: random ones, or text that compresses well.
#[derive(Clone, Debug)]
pub struct Bodies(Arc<[u8]>);

impl Bodies {
    /// Bodies of at most `largest` bytes.
    #[must_use]
    pub fn new(largest: u32, compressible: bool, random: &mut Random) -> Bodies {
        const WORDS: [&str; 8] = ["order ", "paid ", "shipped ", "customer ", "item ", "price ", "total ", "status "];
        let length = POOL_BYTES + largest as usize;
        let mut pool = Vec::with_capacity(length + 16);
        while pool.len() < length {
            if compressible {
                pool.extend_from_slice(WORDS[random.below(WORDS.len() as u32) as usize].as_bytes());
            } else {
                pool.extend_from_slice(&random.next_u64().to_ne_bytes());
            }
        }
        pool.truncate(length);
        Bodies(pool.into())
    }

    /// A body of so many bytes (not more than asked for at the beginning), another one for another `number`.
    #[must_use]
    pub fn get(&self, number: u64, size: u32) -> &[u8] {
        // Steps of half a kilobyte walk through the pool, so that the processor's caches hold what is copied next.
        let at = (number.wrapping_mul(520) as usize) % POOL_BYTES;
        &self.0[at..at + size as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(keys: &Keys, draws: u32) -> Vec<f64> {
        let mut counts = vec![0u32; keys.count as usize];
        let mut random = Random::new(7);
        for _ in 0..draws {
            counts[keys.draw(&mut random) as usize] += 1;
        }
        counts.iter().map(|count| f64::from(*count) / f64::from(draws)).collect()
    }

    #[test]
    fn uniform_keys_come_equally_often() {
        let shares = shares(&Keys::new(10, Distribution::Uniform), 200_000);
        assert!(shares.iter().all(|share| (share - 0.1).abs() < 0.005), "{shares:?}");
    }

    #[test]
    fn zipf_keys_come_by_their_rank() {
        for exponent in [0.0, 0.7, 1.0, 2.0] {
            let shares = shares(&Keys::new(100, Distribution::Zipf(exponent)), 400_000);
            let sum: f64 = (1..=100).map(|n| f64::from(n).powf(-exponent)).sum();
            for (n, share) in shares.iter().enumerate() {
                let wanted = (n as f64 + 1.0).powf(-exponent) / sum;
                assert!((share - wanted).abs() < 0.004, "key {n} of exponent {exponent}: {share} for {wanted}");
            }
        }
        assert_eq!(Keys::new(1, Distribution::Zipf(1.0)).draw(&mut Random::new(1)), 0);
    }

    #[test]
    fn distributions_are_read_back() {
        for text in ["uniform", "zipf:0.9"] {
            assert_eq!(text.parse::<Distribution>().unwrap().to_string(), text);
        }
        assert_eq!("zipf".parse(), Ok(Distribution::Zipf(1.0)));
        for bad in ["", "zipf:x", "zipf:-1", "uniform:1", "normal"] {
            assert!(bad.parse::<Distribution>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_fixed_listed_or_between() {
        let mut random = Random::new(3);
        assert_eq!("16k".parse(), Ok(Sizes::Fixed(16 << 10)));
        let list: Sizes = "1,20,300".parse().unwrap();
        assert_eq!((list.min(), list.max(), list.mean()), (1, 300, 107));
        assert!((0..1000).all(|_| [1, 20, 300].contains(&list.draw(&mut random))));
        let range: Sizes = "5-7".parse().unwrap();
        let drawn: Vec<u32> = (0..1000).map(|_| range.draw(&mut random)).collect();
        assert!((5..=7).all(|size| drawn.contains(&size)) && drawn.iter().all(|size| (5..=7).contains(size)));
        for bad in ["", "x", "7-5", "1,,2", "5m", "-1"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_have_units() {
        let read = |text| parse_bytes(text).ok();
        assert_eq!(read("7"), Some(7));
        assert_eq!((read("2g"), read("2 GiB"), read("1t")), (Some(2 << 30), Some(2 << 30), Some(1 << 40)));
        assert_eq!((read("k"), read("1x"), read("99999999999t"), read("")), (None, None, None, None));
    }

    #[test]
    fn bodies_differ_and_have_their_size() {
        let random = Bodies::new(1000, false, &mut Random::new(1));
        assert_eq!(random.get(5, 1000).len(), 1000);
        assert_ne!(random.get(5, 64), random.get(6, 64));
        assert_eq!(random.get(u64::MAX, 1000).len(), 1000);
        let text = Bodies::new(1000, true, &mut Random::new(1));
        assert!(text.get(9, 1000).is_ascii());
    }
}
