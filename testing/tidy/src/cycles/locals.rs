//! The names of variables and parameters in an item, which hide the items of those names.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{ConstParam, ImplItem, Item, PatIdent, TraitItem, TypeParam};

/// Returns the names of an item's own variables and parameters. An `impl` or a trait has only its generic parameters; a
/// module has none.
pub(super) fn of_item(node: &Item) -> BTreeSet<String> {
    let mut locals = Locals::default();
    match node {
        Item::Mod(_) => {}
        Item::Impl(item) => locals.visit_generics(&item.generics),
        Item::Trait(item) => locals.visit_generics(&item.generics),
        item => visit::visit_item(&mut locals, item),
    }
    locals.0
}

/// Returns the names of the variables and parameters of an item of an `impl`.
pub(super) fn of_impl_item(node: &ImplItem) -> BTreeSet<String> {
    let mut locals = Locals::default();
    locals.visit_impl_item(node);
    locals.0
}

/// Returns the names of the variables and parameters of an item of a trait.
pub(super) fn of_trait_item(node: &TraitItem) -> BTreeSet<String> {
    let mut locals = Locals::default();
    locals.visit_trait_item(node);
    locals.0
}

/// Returns true if `name` is spelt like a variable. In a pattern, any other name is that of a constant or a variant.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|first: char| first.is_lowercase() || first == '_')
}

#[derive(Default)]
struct Locals(BTreeSet<String>);

impl Visit<'_> for Locals {
    fn visit_item(&mut self, _: &Item) {}

    fn visit_pat_ident(&mut self, node: &PatIdent) {
        let name = node.ident.to_string();
        if is_variable(&name) {
            self.0.insert(name);
        }
        visit::visit_pat_ident(self, node);
    }

    fn visit_type_param(&mut self, node: &TypeParam) {
        self.0.insert(node.ident.to_string());
        visit::visit_type_param(self, node);
    }

    fn visit_const_param(&mut self, node: &ConstParam) {
        self.0.insert(node.ident.to_string());
    }
}
