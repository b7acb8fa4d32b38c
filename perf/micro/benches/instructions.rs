//! The program that `cargo xtask instructions` counts under callgrind: each case warm, then its calls inside
//! [`counted_calls`], the name at which callgrind begins and ends a count. Prints the name and the number of calls of each
//! case, in the order of the counts.

fn main() {
    for case in micro::cases() {
        let mut operation = case.warm();
        counted_calls(case.calls, &mut *operation);
        println!("{}\t{}", case.calls, case.name);
    }
}

/// Never inlined and of one type, so that the program has exactly one function of this name.
#[inline(never)]
fn counted_calls(calls: u32, operation: &mut dyn FnMut()) {
    for _ in 0..calls {
        operation();
    }
}
