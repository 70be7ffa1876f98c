//! Ids of pages: golden bytes, a second implementation, and what must tell two ids apart.

use std::sync::Arc;

use proptest::prelude::*;
use tandem_handoff::page::{Namespace, Origin, PAGE_TOKENS, PageId};
use tandem_handoff::{Contract, LayerKind};

use super::driver::{contract, full, mixed, windowed};

const SALT: &[u8] = b"tenant one";
/// First page of tokens 0, 1, 2, ... under [`mixed`] and [`SALT`], exact.
pub const FIRST_PAGE: &str = "20fe68823b5d1f7902974a2f11b6a4d0d1cd7c287efef2e07410096e173d7118";
/// The page after it.
pub const SECOND_PAGE: &str = "a838b123573472e6ac228e23018b45c8d23857aae3fd850a116fa3fa34edc8e4";
/// The position after 130 tokens.
pub const POSITION: &str = "d0ffc954ec769c4ea6d969371f67188fe2a8ee9f70ab7766d9f1ef15aa273525";
/// The first page where the rows went through codec 2.
pub const LOSSY_PAGE: &str = "795525b860fe10fcb983c6630dc0ab9de904293cf3bd5fabeb43e189055d04bf";

fn namespace(contract: Contract, salt: &[u8]) -> Namespace {
    Namespace::new(Arc::new(contract), salt, Origin::Exact)
}

fn ids(namespace: &Namespace, tokens: &[u32]) -> (Vec<PageId>, PageId) {
    let chain = namespace.chain(tokens);
    (chain, namespace.position(&PageId::ROOT, tokens))
}

/// The rule of the document, written a second time: all fields of a hash, then one hash.
mod naive {
    use super::*;

    fn join(fields: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for field in fields {
            out.extend((field.len() as u64).to_le_bytes());
            out.extend(field);
        }
        out
    }

    fn key(contract: &Contract, salt: &[u8], origin: Origin) -> [u8; 32] {
        let c = contract;
        let number = |n: u32| n.to_le_bytes().to_vec();
        let mut fields = vec![number(c.layout_version)];
        let texts = [&c.engine, &c.architecture, &c.quantisation, &c.weights];
        fields.extend(texts.map(|t| t.clone().into_bytes()));
        let texts = [&c.tokenizer, &c.rope, &c.rotation];
        fields.extend(texts.map(|t| t.clone().into_bytes()));
        fields.extend([number(c.window), vec![1], vec![1]]);
        fields.push((c.layers.len() as u64).to_le_bytes().to_vec());
        for l in &c.layers {
            fields.push(vec![u8::from(l.kind == LayerKind::Window)]);
            fields.extend([l.kv_heads, l.key_dim, l.value_dim].map(number));
        }
        fields.push(salt.to_vec());
        fields.push(match origin {
            Origin::Exact => vec![0],
            Origin::Lossy(codec) => vec![1, codec],
        });
        blake3::derive_key("tandem kv v1", &join(&fields))
    }

    /// All ids of a sequence, from the start each time: its pages and its position.
    pub fn ids(
        contract: &Contract,
        salt: &[u8],
        origin: Origin,
        tokens: &[u32],
    ) -> (Vec<PageId>, PageId) {
        let key = key(contract, salt, origin);
        let id = |parent: [u8; 32], tokens: &[u32]| {
            let tokens = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
            let fields = [parent.to_vec(), tokens, Vec::new()];
            *blake3::keyed_hash(&key, &join(&fields)).as_bytes()
        };
        let mut pages = Vec::new();
        let mut parent = [0; 32];
        for page in tokens.chunks_exact(64) {
            parent = id(parent, page);
            pages.push(PageId::from_bytes(parent));
        }
        let tail = &tokens[tokens.len() / 64 * 64..];
        (pages, PageId::from_bytes(id(parent, tail)))
    }
}

#[test]
fn golden_ids() {
    let tokens: Vec<u32> = (0..130).collect();
    let exact = namespace(mixed(), SALT);
    let (pages, position) = ids(&exact, &tokens);
    let shown: Vec<String> = pages.iter().map(ToString::to_string).collect();
    assert_eq!(shown, [FIRST_PAGE, SECOND_PAGE]);
    assert_eq!(position.to_string(), POSITION);
    let lossy = Namespace::new(Arc::new(mixed()), SALT, Origin::Lossy(2));
    assert_eq!(lossy.chain(&tokens)[0].to_string(), LOSSY_PAGE);
}

#[test]
fn the_document_has_the_golden_ids() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire-format.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once("\n## Pages\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    for golden in [FIRST_PAGE, SECOND_PAGE, POSITION, LOSSY_PAGE] {
        assert!(section.contains(golden), "missing: {golden}");
    }
    let row = format!("| `PAGE_TOKENS` | {PAGE_TOKENS} |");
    assert!(section.contains(&row), "missing: {row}");
    assert!(section.contains("`tandem kv v1`"));
}

#[test]
fn every_field_of_a_contract_counts() {
    let tokens: Vec<u32> = (0..64).collect();
    type Change = fn(&mut Contract);
    let changes: [Change; 14] = [
        |_| (),
        |c| c.layout_version += 1,
        |c| c.engine.push('x'),
        |c| c.architecture.push('x'),
        |c| c.quantisation.push('x'),
        |c| c.weights.push('x'),
        |c| c.tokenizer.push('x'),
        |c| c.rope.push('x'),
        |c| c.rotation.push('x'),
        |c| c.window += 1,
        |c| c.layers[1].kind = LayerKind::Full,
        |c| c.layers[1].kv_heads += 1,
        |c| c.layers[1].key_dim += 1,
        |c| c.layers[1].value_dim += 1,
    ];
    let mut seen = std::collections::HashSet::new();
    for change in changes {
        let mut changed = mixed();
        change(&mut changed);
        assert!(seen.insert(namespace(changed, SALT).chain(&tokens)[0]));
    }
    for layers in [
        vec![],
        vec![full(1, 2, 1)],
        vec![full(1, 2, 1), full(1, 1, 2)],
        vec![full(1, 1, 2), full(1, 2, 1)],
    ] {
        assert!(seen.insert(namespace(contract(4, layers), SALT).chain(&tokens)[0]));
    }
    // What moves from one field into the next is a difference.
    let mut moved = mixed();
    moved.engine = "fake 1l".into();
    moved.architecture = "lama".into();
    assert!(seen.insert(namespace(moved, SALT).chain(&tokens)[0]));
    // Salt and origin, also where they could be taken for each other.
    for (salt, origin) in [
        (SALT, Origin::Lossy(0)),
        (SALT, Origin::Lossy(2)),
        (b"", Origin::Exact),
        (b"\0", Origin::Exact),
        (b"tenant onf", Origin::Exact),
        (b"tenant one\0", Origin::Exact),
    ] {
        let other = Namespace::new(Arc::new(mixed()), salt, origin);
        assert!(seen.insert(other.chain(&tokens)[0]), "{salt:?} {origin:?}");
        assert_ne!(other, namespace(mixed(), SALT));
    }
    assert_eq!(namespace(mixed(), SALT), namespace(mixed(), SALT));
}

#[test]
fn extra_and_parent_count() {
    let space = namespace(mixed(), SALT);
    let page = [7; PAGE_TOKENS as usize];
    let first = space.page(&PageId::ROOT, &page, &[]);
    let ids = [
        first,
        space.page(&first, &page, &[]),
        space.page(&PageId::ROOT, &page, &[0]),
        space.page(&PageId::ROOT, &page, &[0, 0]),
        space.page(&PageId::ROOT, &page, b"image"),
        // A position at a page boundary is not the page.
        space.position(&first, &[]),
        space.position(&PageId::ROOT, &page[1..]),
    ];
    let distinct: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
    // Complete pages of the tail are chained.
    assert_eq!(space.position(&PageId::ROOT, &page), ids[5]);
}

#[test]
fn ids_are_written_and_read() {
    let id = namespace(mixed(), SALT).chain(&[1; 64])[0];
    let text = id.to_string();
    assert_eq!(text.parse(), Ok(id));
    assert_eq!(PageId::from_bytes(*id.as_bytes()), id);
    let too_short = &text[1..];
    let too_long = format!("{text}0");
    let upper = text.to_uppercase();
    let no_digit = text.replacen(|_| true, "g", 1);
    let wide = format!("ä{}", &text[2..]);
    for wrong in ["", too_short, &too_long, &upper, &no_digit, &wide] {
        assert!(wrong.parse::<PageId>().is_err(), "{wrong}");
    }
}

#[test]
fn debug_shows_no_key() {
    let salt = b"not for logs";
    let shown = format!("{:?}", namespace(mixed(), salt));
    let again = format!("{:?}", namespace(mixed(), SALT));
    // What depends on the salt would differ.
    assert_eq!(shown, again);
    assert!(shown.contains("Exact"));
}

prop_compose! {
    fn any_contract()(
        window in 0..9_u32,
        texts in prop::array::uniform4("[a-z ]{0,12}"),
        shapes in prop::collection::vec((any::<bool>(), 1..5_u32, 1..9_u32, 1..9_u32), 0..5),
    ) -> Contract {
        let layers = shapes.into_iter().map(|(is_full, heads, key, value)| {
            if is_full { full(heads, key, value) } else { windowed(heads, key, value) }
        });
        let [engine, quantisation, rope, rotation] = texts;
        Contract { engine, quantisation, rope, rotation, ..contract(window, layers.collect()) }
    }
}

fn any_origin() -> impl Strategy<Value = Origin> {
    prop_oneof![Just(Origin::Exact), any::<u8>().prop_map(Origin::Lossy)]
}

proptest! {
    #[test]
    fn the_second_implementation_agrees(
        contract in any_contract(),
        salt in prop::collection::vec(any::<u8>(), 0..40),
        origin in any_origin(),
        tokens in prop::collection::vec(any::<u32>(), 0..400),
    ) {
        let expected = naive::ids(&contract, &salt, origin, &tokens);
        let space = Namespace::new(Arc::new(contract), &salt, origin);
        prop_assert_eq!(&ids(&space, &tokens), &expected);
    }

    #[test]
    fn ids_name_all_tokens_before(
        tokens in prop::collection::vec(any::<u32>(), 1..400),
        at in any::<prop::sample::Index>(),
        other in any::<u32>(),
    ) {
        let space = namespace(mixed(), SALT);
        let chain = space.chain(&tokens);
        prop_assert_eq!(chain.len(), tokens.len() / 64);
        let at = at.index(tokens.len());
        // A prefix has a prefix of the ids.
        let prefix = space.chain(&tokens[..at]);
        prop_assert_eq!(&prefix[..], &chain[..at / 64]);
        prop_assert_ne!(
            space.position(&PageId::ROOT, &tokens[..at]),
            space.position(&PageId::ROOT, &tokens)
        );
        // Another token changes the ids from its page on and none before.
        prop_assume!(other != tokens[at]);
        let mut changed = tokens.clone();
        changed[at] = other;
        let changed_chain = space.chain(&changed);
        for (page, (a, b)) in chain.iter().zip(&changed_chain).enumerate() {
            prop_assert_eq!(a == b, page < at / 64);
        }
        prop_assert_ne!(
            space.position(&PageId::ROOT, &changed),
            space.position(&PageId::ROOT, &tokens)
        );
        // The same tokens in another order have other ids.
        let mut turned = tokens.clone();
        turned.reverse();
        prop_assume!(turned != tokens);
        prop_assert_ne!(
            space.position(&PageId::ROOT, &turned),
            space.position(&PageId::ROOT, &tokens)
        );
    }
}
