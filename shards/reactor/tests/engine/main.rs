//! The engine under real sockets, files and threads, with a small echo service on it.

mod background;
mod cores;
mod ends;
mod flow;
mod service;
