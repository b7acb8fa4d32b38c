//! The grammar: tokens to a tree.
//!
//! Role: recursive descent over the reference's grammar, with the checks that it makes while it builds. Invariants: recursion is
//! bounded by [`MAX_DEPTH`]; chains of AND and of OR are one part each, so that a long list is not deep; what is refused names its
//! place.

use super::evaluate::{Constant, In, Node, Order, Place, Search};
use super::lexer::{Lexer, Sign, Token, Word};
use super::{FilterError, MAX_DEPTH, error};
use std::cmp::Ordering;

/// A parsed text.
pub(super) struct Parsed {
    pub(super) root: Node,
    /// Sorted names of the properties.
    pub(super) names: Box<[Box<[u8]>]>,
    pub(super) ignores_rest: bool,
}

/// A part with what its surroundings must know of it.
struct Part {
    node: Node,
    depth: u32,
    /// Its first byte.
    at: usize,
}

/// Parses a text up to the end of the expression that it begins with.
pub(super) fn parse(text: &str) -> Result<Parsed, FilterError> {
    let mut lexer = Lexer::new(text);
    let (token, at) = lexer.next()?;
    let mut parser = Parser { text, names: names(text), lexer, token, at, nesting: 0 };
    let whole = parser.or()?;
    let root = parser.truth(whole)?.node;
    let ignores_rest = parser.token != Token::End;
    let names = parser.names.iter().map(|name| name.as_bytes().into()).collect();
    Ok(Parsed { root, names, ignores_rest })
}

/// The names in a text, sorted, as far as it can be cut: what cannot is met again by the parser if it gets that far.
fn names(text: &str) -> Vec<&str> {
    let mut lexer = Lexer::new(text);
    let mut names = Vec::new();
    while let Ok((token, _)) = lexer.next() {
        match token {
            Token::End => break,
            Token::Name(name) => names.push(name),
            _ => {}
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    /// The next token and its first byte.
    token: Token<'a>,
    at: usize,
    names: Vec<&'a str>,
    nesting: u32,
}

impl<'a> Parser<'a> {
    fn or(&mut self) -> Result<Part, FilterError> {
        self.chain(Word::Or, Self::and, Node::Or)
    }

    fn and(&mut self) -> Result<Part, FilterError> {
        self.chain(Word::And, Self::equality, Node::And)
    }

    /// One operand, or several that must be truth values.
    fn chain(
        &mut self,
        word: Word,
        operand: fn(&mut Self) -> Result<Part, FilterError>,
        node: fn(Vec<Node>) -> Node,
    ) -> Result<Part, FilterError> {
        let first = operand(self)?;
        if self.token != Token::Word(word) {
            return Ok(first);
        }
        let Part { node: first, mut depth, at } = self.truth(first)?;
        let mut operands = vec![first];
        while self.accept(Token::Word(word))? {
            let next = operand(self)?;
            let next = self.truth(next)?;
            depth = depth.max(next.depth);
            operands.push(next.node);
        }
        operands.shrink_to_fit();
        self.part(node(operands), depth, at)
    }

    fn equality(&mut self) -> Result<Part, FilterError> {
        let mut left = self.comparison()?;
        loop {
            if self.accept(Token::Sign(Sign::Equal))? {
                left = self.equal(left)?;
            } else if self.accept(Token::Sign(Sign::NotEqual))? {
                let equal = self.equal(left)?;
                left = self.part(Node::Not(Box::new(equal.node)), equal.depth, equal.at)?;
            } else if self.accept(Token::Word(Word::Is))? {
                let not = self.accept(Token::Word(Word::Not))?;
                self.expect(Token::Word(Word::Null))?;
                let node = Node::IsNull(Box::new(left.node));
                let node = if not { Node::Not(Box::new(node)) } else { node };
                left = self.part(node, left.depth, left.at)?;
            } else {
                return Ok(left);
            }
        }
    }

    fn equal(&mut self, left: Part) -> Result<Part, FilterError> {
        let right = self.comparison()?;
        for side in [&left, &right] {
            if side.node == Node::Constant(Constant::Null) {
                return Err(self.error(side.at, "NULL cannot be compared (it is IS NULL)"));
            }
        }
        let is_constant = |node: &Node| matches!(node, Node::Constant(_));
        if is_constant(&left.node) && left.node.is_boolean() && is_constant(&right.node) && !right.node.is_boolean() {
            return Err(self.error(right.at, "a truth value cannot be compared with this"));
        }
        let depth = left.depth.max(right.depth);
        self.part(Node::Equal(Box::new([left.node, right.node])), depth, left.at)
    }

    fn comparison(&mut self) -> Result<Part, FilterError> {
        let mut left = self.unary()?;
        loop {
            let order = match self.token {
                Token::Sign(Sign::Greater) => Some(Order::Greater),
                Token::Sign(Sign::AtLeast) => Some(Order::AtLeast),
                Token::Sign(Sign::Less) => Some(Order::Less),
                Token::Sign(Sign::AtMost) => Some(Order::AtMost),
                _ => None,
            };
            left = match (order, self.token) {
                (Some(order), _) => {
                    self.advance()?;
                    self.compare(left, order)?
                }
                (None, Token::Word(Word::Not)) => {
                    self.advance()?;
                    self.by_word(left, true)?
                }
                (None, Token::Word(word)) if is_comparison(word) => self.by_word(left, false)?,
                _ => return Ok(left),
            };
        }
    }

    fn compare(&mut self, left: Part, order: Order) -> Result<Part, FilterError> {
        let right = self.unary()?;
        self.check_order(&left)?;
        self.check_order(&right)?;
        let depth = left.depth.max(right.depth);
        self.part(Node::Compare(order, Box::new([left.node, right.node])), depth, left.at)
    }

    /// A comparison that is a word, after an optional NOT.
    fn by_word(&mut self, left: Part, not: bool) -> Result<Part, FilterError> {
        let place = match self.token {
            Token::Word(Word::Between) => return self.between(left, not),
            Token::Word(Word::In) => return self.list(left, not),
            Token::Word(Word::Contains) => Place::Anywhere,
            Token::Word(Word::StartsWith) => Place::Start,
            Token::Word(Word::EndsWith) => Place::End,
            _ => return Err(self.unexpected("a comparison after NOT")),
        };
        self.advance()?;
        let text = self.quoted()?;
        let search = Search { place, not, operand: left.node, text };
        self.part(Node::Search(Box::new(search)), left.depth, left.at)
    }

    fn between(&mut self, value: Part, not: bool) -> Result<Part, FilterError> {
        self.advance()?;
        let low = self.unary()?;
        self.expect(Token::Word(Word::And))?;
        let high = self.unary()?;
        for part in [&value, &low, &high] {
            self.check_order(part)?;
        }
        if !not
            && let (Node::Constant(low), Node::Constant(high)) = (&low.node, &high.node)
            && low.compare_numbers(high) == Some(Ordering::Greater)
        {
            return Err(self.error(value.at, "the low end of BETWEEN is over its high end"));
        }
        let depth = value.depth.max(low.depth).max(high.depth);
        self.part(Node::Between(not, Box::new([value.node, low.node, high.node])), depth, value.at)
    }

    fn list(&mut self, value: Part, not: bool) -> Result<Part, FilterError> {
        self.advance()?;
        self.expect(Token::Sign(Sign::Open))?;
        let mut texts = vec![self.quoted()?];
        while self.accept(Token::Sign(Sign::Comma))? {
            texts.push(self.quoted()?);
        }
        self.expect(Token::Sign(Sign::Close))?;
        let Node::Property(property) = value.node else {
            return Err(self.error(value.at, "IN is for a property alone"));
        };
        texts.sort_unstable();
        texts.dedup();
        texts.shrink_to_fit();
        self.part(Node::In(Box::new(In { not, property, texts })), value.depth, value.at)
    }

    fn unary(&mut self) -> Result<Part, FilterError> {
        let at = self.at;
        let part = match self.token {
            Token::Sign(Sign::Plus) => self.within(Self::unary)?,
            Token::Sign(Sign::Minus) => {
                let operand = self.within(Self::unary)?;
                self.part(Node::Negate(Box::new(operand.node)), operand.depth, at)?
            }
            Token::Word(Word::Not) => {
                let operand = self.within(Self::unary)?;
                let operand = self.truth(operand)?;
                self.part(Node::Not(Box::new(operand.node)), operand.depth, at)?
            }
            Token::Sign(Sign::Open) => {
                let inner = self.within(Self::or)?;
                self.expect(Token::Sign(Sign::Close))?;
                inner
            }
            _ => self.primary()?,
        };
        Ok(Part { at, ..part })
    }

    /// Steps over a sign that something is nested behind.
    fn within(&mut self, inner: fn(&mut Self) -> Result<Part, FilterError>) -> Result<Part, FilterError> {
        self.nesting += 1;
        if self.nesting > MAX_DEPTH {
            return Err(self.too_deep(self.at));
        }
        self.advance()?;
        let part = inner(self)?;
        self.nesting -= 1;
        Ok(part)
    }

    fn primary(&mut self) -> Result<Part, FilterError> {
        let at = self.at;
        let node = match self.token {
            Token::Text(text) => Node::Constant(Constant::Text(unquote(text))),
            Token::Whole(digits) => Node::Constant(self.whole(digits)?),
            Token::Decimal(text) => Node::Constant(self.decimal(text)?),
            Token::Word(Word::True) => Node::Constant(Constant::Bool(true)),
            Token::Word(Word::False) => Node::Constant(Constant::Bool(false)),
            Token::Word(Word::Null) => Node::Constant(Constant::Null),
            Token::Name(name) => Node::Property(self.index_of(name)),
            _ => return Err(self.unexpected("a value or a property")),
        };
        self.advance()?;
        Ok(Part { node, depth: 0, at })
    }

    fn index_of(&self, name: &str) -> u16 {
        // Every name was listed before; a text holds far fewer than 65,536.
        self.names.binary_search(&name).map_or(u16::MAX, |at| at as u16)
    }

    fn whole(&self, digits: &str) -> Result<Constant, FilterError> {
        let number: i64 = digits.parse().map_err(|_| self.error(self.at, "a whole number over 64 bits"))?;
        Ok(i32::try_from(number).map_or(Constant::Long(number), Constant::Int))
    }

    /// The reference takes no decimal number that is 0 or beyond the largest.
    fn decimal(&self, text: &str) -> Result<Constant, FilterError> {
        match text.parse::<f64>() {
            Ok(number) if number > 0.0 && number.is_finite() => Ok(Constant::Double(number)),
            Ok(0.0) => Err(self.error(self.at, "a decimal number that is 0 or nearly (a whole 0 is allowed)")),
            _ => Err(self.error(self.at, "a decimal number that is too large")),
        }
    }

    fn quoted(&mut self) -> Result<Box<[u8]>, FilterError> {
        let Token::Text(text) = self.token else { return Err(self.unexpected("a text in quotes")) };
        self.advance()?;
        Ok(unquote(text))
    }

    /// A part in a place where a truth value is needed.
    fn truth(&self, part: Part) -> Result<Part, FilterError> {
        match part.node {
            Node::Property(at) => Ok(Part { node: Node::Cast(at), ..part }),
            node if node.is_boolean() => Ok(Part { node, ..part }),
            _ => Err(self.error(part.at, "this is neither true nor false")),
        }
    }

    /// Only numbers and properties have an order.
    fn check_order(&self, part: &Part) -> Result<(), FilterError> {
        match part.node {
            Node::Constant(Constant::Text(_)) => Err(self.error(part.at, "a text has no order")),
            Node::Constant(Constant::Null | Constant::Bool(_)) => Err(self.error(part.at, "this value has no order")),
            ref node if node.is_boolean() => Err(self.error(part.at, "a truth value has no order")),
            _ => Ok(()),
        }
    }

    fn part(&self, node: Node, depth: u32, at: usize) -> Result<Part, FilterError> {
        if depth >= MAX_DEPTH {
            return Err(self.too_deep(at));
        }
        Ok(Part { node, depth: depth + 1, at })
    }

    fn advance(&mut self) -> Result<(), FilterError> {
        (self.token, self.at) = self.lexer.next()?;
        Ok(())
    }

    fn accept(&mut self, token: Token<'_>) -> Result<bool, FilterError> {
        let accepted = self.token == token;
        if accepted {
            self.advance()?;
        }
        Ok(accepted)
    }

    fn expect(&mut self, token: Token<'_>) -> Result<(), FilterError> {
        if self.accept(token)? { Ok(()) } else { Err(self.unexpected(&token.describe())) }
    }

    fn unexpected(&self, wanted: &str) -> FilterError {
        self.error(self.at, format!("expected {wanted}, found {}", self.token.describe()))
    }

    fn too_deep(&self, at: usize) -> FilterError {
        self.error(at, format!("nested deeper than {MAX_DEPTH}"))
    }

    fn error(&self, at: usize, cause: impl Into<String>) -> FilterError {
        error(self.text, at, cause)
    }
}

fn is_comparison(word: Word) -> bool {
    matches!(word, Word::Between | Word::In | Word::Contains | Word::StartsWith | Word::EndsWith)
}

/// A doubled quote stands for one.
fn unquote(text: &str) -> Box<[u8]> {
    text.replace("''", "'").into_bytes().into()
}
