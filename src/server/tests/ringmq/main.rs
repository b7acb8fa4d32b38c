//! The program as an operator sees it: started, refused, stopped, started again.

mod bench;
mod process;
mod refusals;
mod serving;
