//! The search for the module that defines a name.

use super::module::{Module, ModuleId};

/// The most imports that are followed from a name to its meaning. Rust's own rules allow cycles of globs.
const LONGEST_CHAIN: usize = 16;

/// The target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Module(ModuleId),
    /// An item that this module defines.
    Item(ModuleId),
}

/// Returns the module that defines the item to which `parts` leads from the module `from`; `None` if it leads to a
/// module, to another crate or to a local name.
pub(super) fn home(modules: &[Module], from: ModuleId, parts: &[String]) -> Option<ModuleId> {
    match follow(modules, from, parts, LONGEST_CHAIN)? {
        Meaning::Item(module) => Some(module),
        Meaning::Module(_) => None,
    }
}

fn follow(modules: &[Module], from: ModuleId, parts: &[String], chain: usize) -> Option<Meaning> {
    let (first, mut rest) = parts.split_first()?;
    let mut meaning = match first.as_str() {
        "crate" => Meaning::Module(0),
        "self" => Meaning::Module(from),
        "super" => Meaning::Module(modules[from].parent?),
        name => within(modules, from, name, chain)?,
    };
    while let (Meaning::Module(module), Some((name, others))) = (meaning, rest.split_first()) {
        meaning = match name.as_str() {
            "super" => Meaning::Module(modules[module].parent?),
            name => within(modules, module, name, chain)?,
        };
        rest = others;
    }
    Some(meaning)
}

/// Returns the module that defines the macro that the module `from` calls by `name`. Looks in the textual scope of the
/// modules around `from` first, then follows `name` as a path.
pub(super) fn macro_home(modules: &[Module], from: ModuleId, name: &str) -> Option<ModuleId> {
    let around = std::iter::successors(Some(from), |id| modules[*id].parent);
    let textual = around.filter_map(|id| modules[id].macros.get(name)).next();
    textual.copied().or_else(|| home(modules, from, &[name.to_owned()]))
}

/// Returns the meaning of `name` in the module `id`.
fn within(modules: &[Module], id: ModuleId, name: &str, chain: usize) -> Option<Meaning> {
    let module = &modules[id];
    if module.items.contains(name) {
        return Some(Meaning::Item(id));
    }
    let chain = chain.checked_sub(1)?;
    // A module and an item may share a name; other modules use the item.
    let aliases = module.aliases.get(name).into_iter().flatten();
    let found: Vec<Meaning> = aliases.filter_map(|path| follow(modules, id, path, chain)).collect();
    let item = found.iter().find(|meaning| matches!(meaning, Meaning::Item(_)));
    if let Some(meaning) = item.or(found.first()) {
        return Some(*meaning);
    }
    if let Some(child) = module.children.get(name) {
        return Some(Meaning::Module(*child));
    }
    // Exported macros are at the root of their crate.
    if let Some(home) = module.macros.get(name) {
        return Some(Meaning::Item(*home));
    }
    module.globs.iter().find_map(|path| match follow(modules, id, path, chain)? {
        Meaning::Module(target) if target != id => within(modules, target, name, chain),
        _ => None,
    })
}
