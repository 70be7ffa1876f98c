//! Schemas that mean harm, by seed. Tests of other crates include this file, too.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// What a schema is made of; those that stand twice are chosen twice as often.
const KEYWORDS: [&str; 31] = [
    "type",
    "type",
    "properties",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "multipleOf",
    "enum",
    "const",
    "anyOf",
    "allOf",
    "oneOf",
    "$ref",
    "$ref",
    "$defs",
    "contains",
    "not",
    "x-guidance",
];

/// Seeded choices.
pub struct Dice(ChaCha8Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0.next_u32() as usize % end
    }

    /// One of several.
    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// A number of things: mostly few, at times far too many.
    fn count(&mut self) -> usize {
        let most = self.pick(&[3, 3, 10, 30, 300, 3000]);
        1 + self.below(most)
    }

    fn pattern(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .pick(&[
                    "a", "b", ".", "[a-z]", "\\d", "\\w", "\\p{L}", "[^\"]", "\u{e9}", "x{0}",
                ])
                .to_owned();
        }
        let one = self.pattern(depth - 1);
        match self.below(10) {
            0 => format!("({one}|{})", self.pattern(depth - 1)),
            1 => format!("({one}){{{},{}}}", self.below(9), 9 + self.count()),
            2 => format!("({one})*"),
            3 => format!("({one})?{}", self.pattern(depth - 1)),
            4 => format!("({one})+{}", self.pattern(depth - 1)),
            5 => format!("(a|b)*a(a|b){{{}}}", self.count()),
            6 => format!("(?={one}){}", self.pattern(depth - 1)),
            7 => format!("^{one}$"),
            8 => format!("({one}){{{}}}", self.count()),
            _ => format!("{one}{}", self.pattern(depth - 1)),
        }
    }

    fn name(&mut self) -> String {
        match self.below(12) {
            0 => "n".repeat(self.count()),
            1 => "\u{0}\"\\\u{1f980}".to_owned(),
            2 => "$ref".to_owned(),
            n => format!("p{n}"),
        }
    }

    fn number(&mut self) -> Value {
        self.pick(&[
            json!(0),
            json!(-1),
            json!(1),
            json!(3.5),
            json!(1e300),
            json!(-1e300),
            json!(1e-300),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1_000_000_000),
            json!(4_294_967_296_u64),
            json!(0.1),
            json!(50),
        ])
    }

    fn reference(&mut self) -> String {
        match self.below(6) {
            0 => "#".to_owned(),
            1 => "#/$defs".to_owned(),
            2 => "#/properties/p3".to_owned(),
            3 => "http://example.com/schema".to_owned(),
            n => format!("#/$defs/d{}", n - 4 + self.below(3)),
        }
    }

    fn many(&mut self, depth: usize) -> Vec<Value> {
        let n = self.count().min(if depth > 1 { 4 } else { 300 });
        (0..n).map(|_| self.schema(depth - 1)).collect()
    }

    fn properties(&mut self, depth: usize) -> Value {
        let n = self.count().min(if depth > 1 { 4 } else { 9000 });
        let one = self.schema(depth - 1);
        let mut fields = Map::new();
        for i in 0..n {
            let value = if i < 4 {
                self.schema(depth - 1)
            } else {
                one.clone()
            };
            fields.insert(format!("{}{i}", self.name()), value);
        }
        Value::Object(fields)
    }

    /// A value of a keyword that has the wrong type.
    fn nonsense(&mut self) -> Value {
        self.pick(&[
            json!(null),
            json!([]),
            json!({}),
            json!("x"),
            json!(-3),
            json!([null, {"a": []}]),
            json!(true),
        ])
    }

    fn schema(&mut self, depth: usize) -> Value {
        if depth == 0 {
            return self.pick(&[
                json!({}),
                json!(true),
                json!({"type": "string"}),
                json!({"type": "integer"}),
                json!({"$ref": "#"}),
            ]);
        }
        let mut fields = Map::new();
        for _ in 0..1 + self.below(4) {
            let (key, value) = self.keyword(depth);
            fields.insert(key.to_owned(), value);
        }
        Value::Object(fields)
    }

    fn keyword(&mut self, depth: usize) -> (&'static str, Value) {
        let key = self.pick(&KEYWORDS);
        if self.below(40) == 0 {
            return (key, self.nonsense());
        }
        let value = match key {
            "type" => self.pick(&[
                json!("string"),
                json!("object"),
                json!("array"),
                json!("number"),
                json!("integer"),
                json!(["string", "null"]),
            ]),
            "properties" => self.properties(depth),
            "patternProperties" => {
                let n = self.count().min(300);
                let field = |i| (format!("{}{i}", self.pattern(2)), self.schema(depth - 1));
                Value::Object((0..n).map(field).collect())
            }
            "additionalProperties" | "items" | "contains" | "not" => self.schema(depth - 1),
            "required" => (0..self.count()).map(|i| json!(format!("p{i}"))).collect(),
            "prefixItems" | "anyOf" | "allOf" | "oneOf" => Value::Array(self.many(depth)),
            "pattern" => json!(self.pattern(4)),
            "format" => self.pick(&[
                json!("date-time"),
                json!("email"),
                json!("uri"),
                json!("ipv6"),
                json!("uuid"),
                json!("hostname"),
                json!("frog"),
            ]),
            "enum" => (0..self.count())
                .map(|i| json!(format!("{}{i}", self.name())))
                .collect(),
            "const" => json!("c".repeat(self.count() * 30)),
            "$ref" => json!(self.reference()),
            "$defs" => {
                let field = |i| (format!("d{i}"), self.schema(depth - 1));
                Value::Object((0..5).map(field).collect())
            }
            "x-guidance" => json!({"whitespace_flexible": true, "lenient": true}),
            _ => self.number(),
        };
        (key, value)
    }

    /// Of a kind that has killed a node once, or taken it for minutes.
    fn known(&mut self) -> Value {
        let n = self.count();
        match self.below(12) {
            9 => {
                // Long names around very many small things.
                let name = "\u{1f980}".repeat(40);
                let around = |inner: Value, _| json!({name.as_str(): inner});
                (0..n.min(100)).fold(json!(vec![0; n * 30]), around)
            }
            10 => elsewhere(n),
            11 => saturating(n.min(40)),
            0 => chain(n),
            1 => object("properties", n * 3, |i| format!("p{i}")),
            2 => {
                let all = (0..n.min(40)).map(|i| json!({"pattern": format!("a{{{i}}}")}));
                json!({"type": "string", "allOf": all.collect::<Vec<_>>()})
            }
            3 => self.cycle(),
            4 => object("patternProperties", n, |i| {
                format!("^{}{i}", self.pattern(2))
            }),
            5 => {
                let nest = |deep, _| json!({"type": "array", "items": deep});
                (0..n.min(120)).fold(json!({"type": "string"}), nest)
            }
            6 => alternatives(n.min(60)),
            7 => doubled(n.min(60)),
            _ => json!({"type": "string", "pattern": self.pattern(7), "maxLength": self.number()}),
        }
    }

    fn cycle(&mut self) -> Value {
        self.pick(&[
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            json!({"$ref": "#/$defs/a", "$defs": {
                "a": {"allOf": [{"$ref": "#/$defs/b"}]},
                "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]},
            }}),
        ])
    }
}

/// The same in forms that mean a place by another name.
fn elsewhere(n: usize) -> Value {
    let next = |i: usize| match i % 3 {
        0 => json!({"$ref": format!("#/%24defs/d{}", i + 1)}),
        1 => json!({"$ref": format!("#d{}", i + 1), "$anchor": format!("d{i}")}),
        _ => json!({"$ref": format!("urn:x#/$defs/d{}", i + 1)}),
    };
    let defs: Map<_, _> = (0..n).map(|i| (format!("d{i}"), next(i))).collect();
    json!({"$id": "urn:x", "$ref": "#/%24defs/d0", "$defs": defs})
}

/// Ten times as many parts with each definition.
fn saturating(n: usize) -> Value {
    let ten = |i| {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        let fields: Map<_, _> = (0..10).map(|p| (format!("p{p}"), next.clone())).collect();
        (
            format!("d{i}"),
            json!({"properties": fields, "required": ["p0"]}),
        )
    };
    let last = (format!("d{n}"), json!({"type": "string"}));
    let defs: Map<_, _> = (0..n).map(ten).chain([last]).collect();
    json!({"properties": {"a": {"$ref": "#/$defs/d0"}}, "required": ["a"], "$defs": defs})
}

/// References that lead to one another.
fn chain(n: usize) -> Value {
    let next = |i| {
        (
            format!("d{i}"),
            json!({"$ref": format!("#/$defs/d{}", i + 1)}),
        )
    };
    json!({"$ref": "#/$defs/d0", "$defs": Value::Object((0..n).map(next).collect())})
}

fn object(keyword: &str, n: usize, mut name: impl FnMut(usize) -> String) -> Value {
    let fields: Map<_, _> = (0..n)
        .map(|i| (name(i), json!({"type": "string"})))
        .collect();
    json!({"type": "object", keyword: fields})
}

/// Two to the power of `n` ways to satisfy it.
fn alternatives(n: usize) -> Value {
    let one = |i: usize| {
        json!({"anyOf": [
            {"properties": {format!("a{i}"): {"type": "string"}}},
            {"properties": {format!("b{i}"): {"type": "null"}}},
        ]})
    };
    json!({"type": "object", "allOf": (0..n).map(one).collect::<Vec<_>>()})
}

/// Each definition names the next one twice: two to the power of `n` parts.
fn doubled(n: usize) -> Value {
    let twice = |i| {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        (format!("d{i}"), json!({"allOf": [next, next]}))
    };
    let last = (format!("d{n}"), json!({"pattern": "a|b"}));
    let defs: Map<_, _> = (0..n).map(twice).chain([last]).collect();
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// The schema of a seed: one of a kind that has killed a node once, or one that is made up.
pub fn hostile(seed: u64) -> Value {
    let mut dice = Dice::new(seed);
    if seed.is_multiple_of(2) {
        dice.known()
    } else {
        dice.schema(3)
    }
}
