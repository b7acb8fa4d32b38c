//! One binary: the simulated disk itself, and the store's files on it under power cuts and failures.

mod disk;
mod files;
mod index;
mod offsets;
