//! The attributes that limit a part of a program to tests.

use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, ExprBlock, ExprCall, ExprForLoop, ExprIf, ExprLoop, ExprMacro, ExprMatch, ExprMethodCall,
    ExprUnsafe, ExprWhile, ImplItem, Item, Meta, MetaList, Stmt, Token, TraitItem,
};

/// Returns true if the attributes limit their part to tests. `#[test]` alone does not: a crate of tests consists of
/// such functions, and those of other crates are in a module for tests.
pub(super) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => conditions(list).iter().any(implies_test),
        _ => false,
    })
}

/// Returns true if the attributes compile their part only under some condition.
pub(super) fn is_conditional(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg"))
}

fn conditions(list: &MetaList) -> Vec<Meta> {
    let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    inner.into_iter().flatten().collect()
}

/// Returns true if `condition` holds in tests only.
fn implies_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => conditions(list).iter().any(implies_test),
        Meta::List(list) if list.path.is_ident("any") => {
            let conditions = conditions(list);
            !conditions.is_empty() && conditions.iter().all(implies_test)
        }
        _ => false,
    }
}

/// Returns the attributes of an item.
pub(super) fn of_item(node: &Item) -> &[Attribute] {
    match node {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item of an `impl`.
pub(super) fn of_impl_item(node: &ImplItem) -> &[Attribute] {
    match node {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of an item of a trait.
pub(super) fn of_trait_item(node: &TraitItem) -> &[Attribute] {
    match node {
        TraitItem::Const(item) => &item.attrs,
        TraitItem::Fn(item) => &item.attrs,
        TraitItem::Macro(item) => &item.attrs,
        TraitItem::Type(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the attributes of a statement; none for kinds of expressions that are not made conditional in practice.
pub(super) fn of_statement(node: &Stmt) -> &[Attribute] {
    match node {
        Stmt::Local(local) => &local.attrs,
        Stmt::Macro(macros) => &macros.attrs,
        Stmt::Item(item) => of_item(item),
        Stmt::Expr(
            Expr::Block(ExprBlock { attrs, .. })
            | Expr::Call(ExprCall { attrs, .. })
            | Expr::ForLoop(ExprForLoop { attrs, .. })
            | Expr::If(ExprIf { attrs, .. })
            | Expr::Loop(ExprLoop { attrs, .. })
            | Expr::Macro(ExprMacro { attrs, .. })
            | Expr::Match(ExprMatch { attrs, .. })
            | Expr::MethodCall(ExprMethodCall { attrs, .. })
            | Expr::Unsafe(ExprUnsafe { attrs, .. })
            | Expr::While(ExprWhile { attrs, .. }),
            _,
        ) => attrs,
        Stmt::Expr(..) => &[],
    }
}
