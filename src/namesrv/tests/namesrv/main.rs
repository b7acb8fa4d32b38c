//! Tests of the name server through its public functions.

mod requests;
mod table;
