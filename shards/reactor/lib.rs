//! A crate of RingMQ.
