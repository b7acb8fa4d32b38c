//! The program as an operator sees it: started, refused, stopped, started again.

mod process;
mod refusals;
mod serving;
