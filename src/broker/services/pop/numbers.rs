//! Lists of numbers in decimal: what a pop tells of its messages, what its check point and their acknowledgement hold.
//!
//! Role: pure text. Offsets of a pop mostly follow each other, so the digits of one are made from those of the one before.

/// Room for a number of 64 bits and its comma, and for the word that is copied.
const WIDTH: usize = 24;
/// What is put together before it is appended: the numbers of a check point.
const BLOCK: usize = 32 * WIDTH;
/// Digits of a number that is kept in a word, with its comma behind them.
const WORD_DIGITS: usize = 15;

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
        used += decimal.write(number, &mut block[used..used + WIDTH]);
    }
    // Not the last comma.
    out.extend_from_slice(&block[..used.saturating_sub(1)]);
}

/// A number and its digits, a comma behind them, as they lie in memory. In a word, not an array: one digit changes from one
/// number to the next, and a text that was just changed in part is slow to copy.
#[derive(Default)]
struct Decimal {
    text: u128,
    /// 0: the text is none that counts on.
    digits: usize,
    value: u64,
}

impl Decimal {
    /// Writes the digits and a comma; gives how many bytes that is.
    fn write(&mut self, number: u64, out: &mut [u8]) -> usize {
        let last = 8 * self.digits.saturating_sub(1);
        let counts_on = self.digits > 0 && self.value.checked_add(1) == Some(number) && !number.is_multiple_of(10);
        self.value = number;
        if counts_on {
            self.text += 1 << last;
            out[..16].copy_from_slice(&self.text.to_le_bytes());
            return self.digits + 1;
        }
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(number).as_bytes();
        out[..digits.len()].copy_from_slice(digits);
        out[digits.len()] = b',';
        self.digits = if digits.len() > WORD_DIGITS { 0 } else { digits.len() };
        self.text = u128::from_le_bytes(*out.first_chunk().expect("a number has room for a word"));
        digits.len() + 1
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
        let word = 10u64.pow(WORD_DIGITS as u32);
        for numbers in [
            &[][..],
            &[0],
            &[u64::MAX],
            &[9, 10],
            &[u64::MAX, 0],
            &[u64::MAX - 1, u64::MAX],
            &[word - 2, word - 1, word, word + 1],
        ] {
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
