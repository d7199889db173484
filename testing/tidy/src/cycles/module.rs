//! The modules of one crate, with their definitions, imports and uses.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt as _;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, Expr, ExprMethodCall, Field, FieldValue, Ident, ImplItem, Item, ItemImpl, ItemMacro, ItemMod,
    ItemUse, LitStr, Macro, Meta, Path, Stmt, Token, TraitItem, Type, UseTree, Variant, Visibility,
};

use super::conditions::{self, is_test};
use super::locals;
use super::place::Place;
use crate::finding::Finding;
use crate::tree::Tree;

/// A path such as `crate::debt::Debt`, by its parts.
pub(crate) type Parts = Vec<String>;

/// The number of a module in its crate.
pub(crate) type ModuleId = usize;

/// A module: a file, or a block within one.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// The file, relative to the root of the tree.
    pub(crate) file: String,
    /// The module around it; `None` for the crate's root.
    pub(crate) parent: Option<ModuleId>,
    /// The modules within it.
    pub(crate) children: BTreeMap<String, ModuleId>,
    /// The names of its definitions.
    pub(crate) items: BTreeSet<String>,
    /// The names that it imports, re-exports included, with their paths.
    pub(crate) aliases: BTreeMap<String, Vec<Parts>>,
    /// The modules of which it imports every name.
    pub(crate) globs: Vec<Parts>,
    /// The macros in textual scope, each with the module that defines it; in the crate's root also its exported macros.
    pub(crate) macros: BTreeMap<String, ModuleId>,
    /// The macros that its code calls by a single name, with their lines.
    pub(crate) macro_calls: Vec<(String, usize)>,
    /// The paths that its code uses, with their lines.
    pub(crate) uses: Vec<(Parts, usize)>,
    /// The methods that it defines.
    pub(crate) methods: Vec<Method>,
    /// The methods that its code calls on `self` or names after `Self::`, with their lines.
    pub(crate) calls: Vec<(Method, usize)>,
}

/// A method that belongs to no trait.
#[derive(Clone, Debug)]
pub(crate) struct Method {
    /// The type, as the `impl` names it.
    pub(crate) of: Parts,
    /// The method's own name.
    pub(crate) name: String,
}

/// Reads the modules of the crate whose first file is `path`, without tests. The crate's root comes first. A file
/// that is missing or not valid Rust is a finding.
pub(crate) fn read(tree: &Tree, path: &str, findings: &mut Vec<Finding>) -> Vec<Module> {
    let (modules, place, locals) = (Vec::new(), Place::of_root(path), BTreeSet::new());
    let mut reader = Reader { tree, modules, current: 0, place: place.clone(), of: None, locals, findings };
    reader.open(path.to_owned(), place, None);
    reader.modules
}

struct Reader<'a> {
    tree: &'a Tree,
    modules: Vec<Module>,
    current: ModuleId,
    /// The place of the current module.
    place: Place,
    /// The type whose `impl` is being read.
    of: Option<Parts>,
    /// The names of variables and parameters of the item that is being read.
    locals: BTreeSet<String>,
    findings: &'a mut Vec<Finding>,
}

impl Reader<'_> {
    /// Reads the file `path` as a module within `parent`, at `place`.
    fn open(&mut self, path: String, place: Place, parent: Option<ModuleId>) -> ModuleId {
        let id = self.enter(path.clone(), parent);
        // Another check finds the files that are not text.
        let Some(text) = self.tree.texts.get(&path) else { return id };
        match syn::parse_file(text) {
            Ok(file) if is_test(&file.attrs) => {}
            Ok(file) => self.visit_all(&file.items, id, place),
            Err(error) => {
                let sentence = error.to_string();
                self.findings.push(Finding { path, line: error.span().start().line, sentence });
            }
        }
        id
    }

    fn enter(&mut self, file: String, parent: Option<ModuleId>) -> ModuleId {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// Visits `items` as those of the module `id` at `place`.
    fn visit_all(&mut self, items: &[Item], id: ModuleId, place: Place) {
        let around = (std::mem::replace(&mut self.current, id), std::mem::replace(&mut self.place, place));
        for item in items {
            self.visit_item(item);
        }
        (self.current, self.place) = around;
    }

    fn module(&mut self) -> &mut Module {
        &mut self.modules[self.current]
    }

    fn define(&mut self, ident: &Ident) {
        let name = name(ident);
        self.module().items.insert(name);
    }

    /// Adds the imports of a `use`. A re-export does not count as a use.
    fn import(&mut self, node: &UseTree, prefix: &mut Parts, is_re_export: bool) {
        match node {
            UseTree::Path(path) => {
                prefix.push(name(&path.ident));
                self.import(&path.tree, prefix, is_re_export);
                prefix.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, prefix, is_re_export);
                }
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.span.start().line;
                self.module().globs.push(prefix.clone());
                // The variants of an enum are not names of a module: the glob uses the enum.
                if !is_re_export {
                    self.module().uses.push((prefix.clone(), line));
                }
            }
            UseTree::Name(name) => self.alias(&name.ident, &name.ident, prefix, is_re_export),
            UseTree::Rename(rename) => self.alias(&rename.ident, &rename.rename, prefix, is_re_export),
        }
    }

    fn alias(&mut self, of: &Ident, renamed: &Ident, prefix: &[String], is_re_export: bool) {
        let mut path = prefix.to_vec();
        let name = if of == "self" && renamed == "self" {
            prefix.last().cloned().unwrap_or_default()
        } else {
            if of != "self" {
                path.push(name(of));
            }
            name(renamed)
        };
        let line = of.span().start().line;
        let module = self.module();
        module.aliases.entry(name).or_default().push(path.clone());
        if !is_re_export {
            module.uses.push((path, line));
        }
    }

    /// Notes a call of a method of the type whose `impl` is being read.
    fn call(&mut self, method: &Ident) {
        if let Some(of) = self.of.clone() {
            let line = method.span().start().line;
            self.module().calls.push((Method { of, name: name(method) }, line));
        }
    }

    /// Adds the paths among the tokens of a macro, whose grammar is not known. A name after a single dot is a field or
    /// a method.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Parts = Vec::new();
        let (mut colons, mut points, mut line) = (0, 0, 0);
        for token in tokens {
            let continues = match &token {
                TokenTree::Punct(punct) => punct.as_char() == ':' && !path.is_empty(),
                TokenTree::Ident(_) => colons == 2,
                _ => false,
            };
            if !continues {
                self.take(&mut path, line);
                colons = 0;
            }
            match token {
                TokenTree::Ident(_) if points == 1 => points = 0,
                TokenTree::Ident(ident) => {
                    (colons, points, line) = (0, 0, ident.span().start().line);
                    path.push(name(&ident));
                }
                TokenTree::Punct(punct) if punct.as_char() == '.' => points += 1,
                TokenTree::Punct(punct) => {
                    colons += usize::from(punct.as_char() == ':' && !path.is_empty());
                    points = 0;
                }
                TokenTree::Group(group) => {
                    self.scan(group.stream());
                    points = 0;
                }
                TokenTree::Literal(_) => points = 0,
            }
        }
        self.take(&mut path, line);
    }

    fn take(&mut self, path: &mut Parts, line: usize) {
        let path = std::mem::take(path);
        self.uses(path, line);
    }

    /// Notes a use of `path`, unless it is a variable or begins with a parameter of a type.
    fn uses(&mut self, path: Parts, line: usize) {
        let Some(first) = path.first() else { return };
        let may_be_local = path.len() == 1 || !locals::is_variable(first);
        if !(may_be_local && self.locals.contains(first)) {
            self.module().uses.push((path, line));
        }
    }

    /// Adds the paths with several parts in the tokens of an attribute and in its strings. A single name is left out,
    /// because it may be a word of the attribute's own.
    fn scan_attribute(&mut self, tokens: TokenStream) {
        let known = self.module().uses.len();
        self.scan(tokens.clone());
        let found = self.module().uses.split_off(known);
        self.module().uses.extend(found.into_iter().filter(|(path, _)| path.len() > 1));
        self.scan_strings(tokens);
    }

    /// Adds the paths in the strings of an attribute. Serde's `with` names a module, of which it calls two functions.
    fn scan_strings(&mut self, tokens: TokenStream) {
        for token in tokens {
            if let TokenTree::Group(group) = token {
                self.scan_strings(group.stream());
            } else if let Ok(text) = syn::parse2::<LitStr>(token.into())
                && let Ok(path) = text.parse::<Path>()
                && path.segments.len() > 1
            {
                let line = text.span().start().line;
                let paths = ["serialize", "deserialize"].map(|name| [parts(&path), vec![name.to_owned()]].concat());
                self.module().uses.extend(paths.map(|path| (path, line)));
            }
        }
    }

    /// Reads a part that has variables of its own.
    fn with_locals(&mut self, locals: BTreeSet<String>, visit: impl FnOnce(&mut Self)) {
        let around = self.locals.clone();
        self.locals.extend(locals);
        visit(self);
        self.locals = around;
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item(&mut self, node: &Item) {
        if is_test(conditions::of_item(node)) {
            return;
        }
        let defined = match node {
            Item::Const(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Fn(item) => Some(&item.sig.ident),
            Item::Static(item) => Some(&item.ident),
            Item::Struct(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::TraitAlias(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Union(item) => Some(&item.ident),
            Item::Macro(item) => item.ident.as_ref(),
            _ => None,
        };
        if let Some(defined) = defined {
            self.define(defined);
        }
        let around = (self.of.take(), std::mem::replace(&mut self.locals, locals::of_item(node)));
        visit::visit_item(self, node);
        (self.of, self.locals) = around;
    }

    fn visit_item_macro(&mut self, node: &ItemMacro) {
        if let Some(ident) = &node.ident {
            let (name, current) = (name(ident), self.current);
            if has(&node.attrs, "macro_export") {
                self.modules[0].macros.insert(name.clone(), current);
            }
            self.module().macros.insert(name, current);
        }
        visit::visit_item_macro(self, node);
    }

    fn visit_item_mod(&mut self, node: &ItemMod) {
        let child = if let Some((_, items)) = &node.content {
            let file = self.modules[self.current].file.clone();
            let place = self.place.of_block(node).unwrap_or_default();
            let id = self.enter(file, Some(self.current));
            self.visit_all(items, id, place);
            id
        } else {
            match self.place.of_file(self.tree, node) {
                Ok((file, place)) => self.open(file, place, Some(self.current)),
                Err(files) => {
                    // The file of a conditional module may exist only on another system.
                    if !conditions::is_conditional(&node.attrs) {
                        let (path, line) = (self.module().file.clone(), node.ident.span().start().line);
                        let sentence = format!("the module {} is in none of {files:?}", node.ident);
                        self.findings.push(Finding { path, line, sentence });
                    }
                    return;
                }
            }
        };
        if has(&node.attrs, "macro_use") {
            let macros = self.modules[child].macros.clone();
            self.module().macros.extend(macros);
        }
        let name = name(&node.ident);
        self.module().children.insert(name, child);
    }

    fn visit_item_use(&mut self, node: &ItemUse) {
        let is_re_export = !matches!(node.vis, Visibility::Inherited);
        self.import(&node.tree, &mut Vec::new(), is_re_export);
    }

    fn visit_item_impl(&mut self, node: &ItemImpl) {
        if let Type::Path(of) = &*node.self_ty {
            let of = parts(&of.path);
            if node.trait_.is_none() {
                let kept = node.items.iter().filter(|item| !is_test(conditions::of_impl_item(item)));
                let methods = kept.filter_map(|item| match item {
                    ImplItem::Fn(method) => Some(Method { of: of.clone(), name: name(&method.sig.ident) }),
                    _ => None,
                });
                let methods: Vec<_> = methods.collect();
                self.module().methods.extend(methods);
            }
            self.of = Some(of);
        }
        visit::visit_item_impl(self, node);
    }

    fn visit_impl_item(&mut self, node: &ImplItem) {
        if !is_test(conditions::of_impl_item(node)) {
            self.with_locals(locals::of_impl_item(node), |reader| visit::visit_impl_item(reader, node));
        }
    }

    fn visit_trait_item(&mut self, node: &TraitItem) {
        if !is_test(conditions::of_trait_item(node)) {
            self.with_locals(locals::of_trait_item(node), |reader| visit::visit_trait_item(reader, node));
        }
    }

    fn visit_stmt(&mut self, node: &Stmt) {
        if !is_test(conditions::of_statement(node)) {
            visit::visit_stmt(self, node);
        }
    }

    fn visit_field(&mut self, node: &Field) {
        if !is_test(&node.attrs) {
            visit::visit_field(self, node);
        }
    }

    fn visit_variant(&mut self, node: &Variant) {
        if !is_test(&node.attrs) {
            visit::visit_variant(self, node);
        }
    }

    fn visit_arm(&mut self, node: &Arm) {
        if !is_test(&node.attrs) {
            visit::visit_arm(self, node);
        }
    }

    fn visit_field_value(&mut self, node: &FieldValue) {
        if !is_test(&node.attrs) {
            visit::visit_field_value(self, node);
        }
    }

    fn visit_expr_method_call(&mut self, node: &ExprMethodCall) {
        if matches!(&*node.receiver, Expr::Path(receiver) if receiver.path.is_ident("self")) {
            self.call(&node.method);
        }
        visit::visit_expr_method_call(self, node);
    }

    fn visit_path(&mut self, node: &Path) {
        if let [first, method] = &*node.segments.iter().collect::<Vec<_>>()
            && first.ident == "Self"
        {
            self.call(&method.ident);
        }
        let line = node.segments.first().map_or(0, |segment| segment.ident.span().start().line);
        self.uses(parts(node), line);
        visit::visit_path(self, node);
    }

    fn visit_macro(&mut self, node: &Macro) {
        match node.path.get_ident() {
            Some(ident) => {
                let call = (name(ident), ident.span().start().line);
                self.module().macro_calls.push(call);
            }
            None => self.visit_path(&node.path),
        }
        match node.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            Ok(arguments) => arguments.iter().for_each(|argument| self.visit_expr(argument)),
            Err(_) => self.scan(node.tokens.clone()),
        }
    }

    fn visit_attribute(&mut self, node: &Attribute) {
        match &node.meta {
            Meta::List(list) => {
                self.visit_path(&list.path);
                self.scan_attribute(list.tokens.clone());
            }
            Meta::Path(path) => self.visit_path(path),
            Meta::NameValue(_) => {}
        }
    }

    fn visit_visibility(&mut self, _: &Visibility) {}
}

/// Returns the names of a path, without its arguments.
fn parts(path: &Path) -> Parts {
    path.segments.iter().map(|segment| name(&segment.ident)).collect()
}

/// Returns the name that `r#name` means.
fn name(ident: &Ident) -> String {
    ident.unraw().to_string()
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}
