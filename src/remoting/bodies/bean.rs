//! How typed bodies read and write JSON: the trait, its scalars and containers, and the macros that declare beans.
//!
//! Role: one place for Java's habits (defaults for what is missing, quoted numbers, integer and object keys). It knows no
//! body by name.

use crate::json::{Json, JsonError, JsonRef, Key};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// A value with a JSON form.
pub trait Body: Sized {
    /// The value as JSON.
    fn to_json(&self) -> Json;

    /// The value of a JSON text, which is not `null`.
    ///
    /// # Errors
    /// It is of another kind, or a member is.
    fn from_json(value: JsonRef<'_>) -> Result<Self, BodyError>;

    /// The compact text, as it goes over the wire.
    fn encode(&self) -> Vec<u8> {
        self.to_json().to_vec()
    }

    /// The text with tabs, as it stands in config files.
    fn encode_pretty(&self) -> Vec<u8> {
        self.to_json().to_pretty()
    }

    /// The value of a whole text.
    ///
    /// # Errors
    /// It is no JSON, `null`, or of another shape.
    fn decode(text: &[u8]) -> Result<Self, BodyError> {
        Self::from_json(JsonRef::parse(text)?)
    }
}

/// Why a text is not the body that it should be.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BodyError {
    /// It is no JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Something else than this kind of value was wanted.
    #[error("{0} expected")]
    Expected(&'static str),
    /// A member is of the wrong kind.
    #[error("in \"{member}\": {reason}")]
    Member {
        /// Name of the member.
        member: &'static str,
        /// What is wrong with it.
        reason: Box<BodyError>,
    },
    /// A compressed body does not inflate, or its parts do not fit.
    #[error("malformed compressed body: {0}")]
    Compressed(&'static str),
    /// A compressed body inflates to more than this many bytes.
    #[error("the body inflates to more than {0} bytes")]
    TooLarge(usize),
}

/// The key of a table.
pub trait MapKey: Ord + Sized {
    /// The key as it is written.
    fn to_key(&self) -> Key;

    /// The key of a text that was read; `None` when it is none.
    fn from_key(key: JsonRef<'_>) -> Option<Self>;
}

macro_rules! scalar {
    ($type:ty, $expected:literal, $read:ident, $write:expr) => {
        impl Body for $type {
            fn to_json(&self) -> Json {
                let write: fn(&$type) -> Json = $write;
                write(self)
            }

            fn from_json(value: JsonRef<'_>) -> Result<Self, BodyError> {
                value.$read().map(Into::into).ok_or(BodyError::Expected($expected))
            }
        }
    };
}

scalar!(i32, "a 32-bit number", as_i32, |value| Json::Int((*value).into()));
scalar!(i64, "a 64-bit number", as_i64, |value| Json::Int(*value));
scalar!(f64, "a number", as_f64, |value| Json::Float(*value));
scalar!(bool, "true or false", as_bool, |value| Json::Bool(*value));
scalar!(String, "a text", as_str, |value| Json::Text(value.clone()));

impl Body for Json {
    fn to_json(&self) -> Json {
        self.clone()
    }

    fn from_json(value: JsonRef<'_>) -> Result<Self, BodyError> {
        Ok(Self::from_ref(value))
    }
}

impl<T: Body> Body for Option<T> {
    fn to_json(&self) -> Json {
        self.as_ref().map_or(Json::Null, Body::to_json)
    }

    fn from_json(value: JsonRef<'_>) -> Result<Self, BodyError> {
        if value.is_null() { Ok(None) } else { T::from_json(value).map(Some) }
    }
}

impl<T: Body> Body for Vec<T> {
    fn to_json(&self) -> Json {
        Json::List(self.iter().map(Body::to_json).collect())
    }

    fn from_json(value: JsonRef<'_>) -> Result<Self, BodyError> {
        items(value)?.collect()
    }
}

impl<T: Body + Ord> Body for BTreeSet<T> {
    fn to_json(&self) -> Json {
        Json::List(self.iter().map(Body::to_json).collect())
    }

    fn from_json(value: JsonRef<'_>) -> Result<Self, BodyError> {
        items(value)?.collect()
    }
}

fn items<T: Body>(value: JsonRef<'_>) -> Result<impl Iterator<Item = Result<T, BodyError>>, BodyError> {
    if !value.is_list() {
        return Err(BodyError::Expected("a list"));
    }
    Ok(value.items().filter(|item| !item.is_null()).map(T::from_json))
}

impl<K: MapKey, V: Body> Body for BTreeMap<K, V> {
    fn to_json(&self) -> Json {
        Json::Object(self.iter().map(|(key, value)| (key.to_key(), value.to_json())).collect())
    }

    fn from_json(value: JsonRef<'_>) -> Result<Self, BodyError> {
        if !value.is_object() {
            return Err(BodyError::Expected("an object"));
        }
        let entries = value.entries().filter(|(_, value)| !value.is_null());
        entries
            .map(|(key, value)| Ok((K::from_key(key).ok_or(BodyError::Expected("another key"))?, V::from_json(value)?)))
            .collect()
    }
}

impl MapKey for String {
    fn to_key(&self) -> Key {
        Key::from(self.clone())
    }

    fn from_key(key: JsonRef<'_>) -> Option<Self> {
        key.as_str().map(Into::into)
    }
}

impl MapKey for i32 {
    fn to_key(&self) -> Key {
        Key::Int((*self).into())
    }

    fn from_key(key: JsonRef<'_>) -> Option<Self> {
        key.as_i32()
    }
}

impl MapKey for i64 {
    fn to_key(&self) -> Key {
        Key::Int(*self)
    }

    fn from_key(key: JsonRef<'_>) -> Option<Self> {
        key.as_i64()
    }
}

/// Declares a bean: a struct with its members' Java names, in the order of those names, and defaults.
macro_rules! bean {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $json:literal $(or $default:expr)?,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $crate::bodies::bean::bean!(@default $($default)?),)* }
            }
        }

        impl $crate::bodies::Body for $name {
            fn to_json(&self) -> $crate::json::Json {
                $crate::json::Json::bean([$(($json, $crate::bodies::Body::to_json(&self.$field)),)*])
            }

            fn from_json(value: $crate::json::JsonRef<'_>) -> Result<Self, $crate::bodies::BodyError> {
                if !value.is_object() {
                    return Err($crate::bodies::BodyError::Expected("an object"));
                }
                let mut bean = Self::default();
                for (name, value) in value.entries().filter(|(_, value)| !value.is_null()) {
                    let Some(name) = name.as_str() else { continue };
                    match &*name {
                        $($json => bean.$field = $crate::bodies::bean::member($json, value)?,)*
                        _ => {}
                    }
                }
                Ok(bean)
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

/// Declares an enum that is written by name; an unknown name reads as the first.
macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $(#[$first_doc:meta])* $first:ident $first_text:literal, $($(#[$variant_doc:meta])* $variant:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type {
            $(#[$first_doc])*
            #[default]
            $first,
            $($(#[$variant_doc])* $variant,)*
        }

        impl $type {
            /// Java's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    Self::$first => $first_text,
                    $(Self::$variant => $text,)*
                }
            }

            /// The value of a name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $first_text => Some(Self::$first),
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl $crate::bodies::Body for $type {
            fn to_json(&self) -> $crate::json::Json {
                $crate::json::Json::from(self.name())
            }

            fn from_json(value: $crate::json::JsonRef<'_>) -> Result<Self, $crate::bodies::BodyError> {
                let name = value.as_str().ok_or($crate::bodies::BodyError::Expected("a name"))?;
                Ok(Self::from_name(&name).unwrap_or_default())
            }
        }
    };
}

pub(crate) use {bean, names};

pub(crate) fn member<T: Body>(member: &'static str, value: JsonRef<'_>) -> Result<T, BodyError> {
    T::from_json(value).map_err(|reason| BodyError::Member { member, reason: Box::new(reason) })
}
