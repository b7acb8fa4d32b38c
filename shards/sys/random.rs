//! Seeds from the kernel: for hash maps and identities, so that no input can be aimed at our tables.

use std::io;

/// A seed of 64 random bits. Errors: the kernel has no random source (a broken container).
pub fn seed() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_differ() {
        assert_ne!(super::seed().unwrap(), super::seed().unwrap());
    }
}
