//! Lists of numbers in decimal: what a pop tells of its messages, what its check point and their acknowledgement hold.
//!
//! Role: pure text. Offsets of a pop mostly follow each other, so the digits of one are made from those of the one before.

/// Room for a number of 64 bits and its comma.
const WIDTH: usize = 24;
/// What is put together before it is appended: the numbers of a check point.
const BLOCK: usize = 32 * WIDTH;

/// Appends numbers, separated by commas.
pub fn write_numbers(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = u64>) {
    let mut block = [0; BLOCK];
    let mut used = 0;
    let mut decimal = Decimal::default();
    for number in numbers {
        if used + WIDTH > BLOCK {
            out.extend_from_slice(&block[..used]);
            used = 0;
        }
        decimal.set(number);
        block[used..used + WIDTH].copy_from_slice(&decimal.text);
        used += decimal.len + 1;
    }
    // Not the last comma.
    out.extend_from_slice(&block[..used.saturating_sub(1)]);
}

/// A number and its digits, a comma behind them.
#[derive(Default)]
struct Decimal {
    text: [u8; WIDTH],
    len: usize,
    value: u64,
}

impl Decimal {
    fn set(&mut self, number: u64) {
        let follows = self.len > 0 && self.value.checked_add(1) == Some(number);
        self.value = number;
        if follows && self.count_up() {
            return;
        }
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(number).as_bytes();
        self.len = digits.len();
        self.text[..self.len].copy_from_slice(digits);
        self.text[self.len] = b',';
    }

    /// Adds one; false when a digit more is needed.
    fn count_up(&mut self) -> bool {
        for digit in self.text[..self.len].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return true;
            }
            *digit = b'0';
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same(numbers: &[u64]) {
        let mut out = b"x".to_vec();
        write_numbers(&mut out, numbers.iter().copied());
        let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
        assert_eq!(String::from_utf8(out).unwrap(), format!("x{}", texts.join(",")));
    }

    #[test]
    fn few_and_many() {
        for numbers in [&[][..], &[0], &[u64::MAX], &[9, 10], &[u64::MAX, 0], &[u64::MAX - 1, u64::MAX]] {
            same(numbers);
        }
        same(&(990..1_100).collect::<Vec<u64>>());
        same(&[u64::MAX; 100]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn as_each_alone(start in 0..=u64::MAX - 10_000, low in 0u64..100_000, steps in proptest::collection::vec(0u64..3, 0..80)) {
            for start in [start, low] {
                let numbers: Vec<u64> = steps.iter().scan(start, |at, step| { *at += step; Some(*at) }).collect();
                same(&numbers);
            }
        }
    }
}
