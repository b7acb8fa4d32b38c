//! Bodies of requests and responses.
