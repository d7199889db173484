//! The modules of one crate, with their definitions, imports and uses.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprMethodCall, ImplItem, Item, ItemImpl, ItemMod, ItemUse, Macro, Meta, Path, Token, Type,
    UseTree, Visibility,
};

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
    /// The paths that its code uses, with their lines.
    pub(crate) uses: Vec<(Parts, usize)>,
    /// The methods that it defines.
    pub(crate) methods: Vec<Method>,
    /// The methods that its code calls on `self` or names after `Self::`, with their lines.
    pub(crate) calls: Vec<(Method, usize)>,
}

/// A method that is no trait's.
#[derive(Clone, Debug)]
pub(crate) struct Method {
    /// The type, as the `impl` names it.
    pub(crate) of: Parts,
    /// The method's own name.
    pub(crate) name: String,
}

/// Reads the modules of the crate whose first file is `path`, without tests. The crate's root comes first. Fails if a
/// file is missing or not valid Rust.
pub(crate) fn read(tree: &Tree, path: &str) -> Result<Vec<Module>, String> {
    let mut reader = Reader { tree, modules: Vec::new(), current: 0, of: None, failed: None };
    reader.open(path.to_owned(), None)?;
    match reader.failed {
        None => Ok(reader.modules),
        Some(error) => Err(error),
    }
}

struct Reader<'a> {
    tree: &'a Tree,
    modules: Vec<Module>,
    current: ModuleId,
    /// The type whose `impl` is being read.
    of: Option<Parts>,
    failed: Option<String>,
}

impl Reader<'_> {
    /// Reads the file `path` as a module within `parent`.
    fn open(&mut self, path: String, parent: Option<ModuleId>) -> Result<ModuleId, String> {
        let text = self.tree.texts.get(&path).ok_or_else(|| format!("{path} is not in the tree"))?;
        let file = syn::parse_file(text).map_err(|error| {
            let start = error.span().start();
            format!("{path}:{}:{}: {error}", start.line, start.column + 1)
        })?;
        let id = self.enter(path, parent);
        if !is_test(&file.attrs) {
            self.visit_all(&file.items, id);
        }
        Ok(id)
    }

    fn enter(&mut self, file: String, parent: Option<ModuleId>) -> ModuleId {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// Visits `items` as those of the module `id`.
    fn visit_all(&mut self, items: &[Item], id: ModuleId) {
        let around = std::mem::replace(&mut self.current, id);
        for item in items {
            self.visit_item(item);
        }
        self.current = around;
    }

    fn module(&mut self) -> &mut Module {
        &mut self.modules[self.current]
    }

    fn define(&mut self, name: &syn::Ident) {
        let name = name.to_string();
        self.module().items.insert(name);
    }

    /// Returns the file of the module that `node` declares within the current one, by Rust's rules.
    fn file_of(&self, node: &ItemMod) -> Result<String, String> {
        let here = &self.modules[self.current].file;
        let (folder, name) = here.rsplit_once('/').unwrap_or(("", here));
        if let Some(path) = node.attrs.iter().find_map(path_attribute) {
            return Ok(format!("{folder}/{path}"));
        }
        let stem = name.trim_end_matches(".rs");
        let folder =
            if ["mod", "lib", "main"].contains(&stem) { folder.to_owned() } else { format!("{folder}/{stem}") };
        let candidates = [format!("{folder}/{}.rs", node.ident), format!("{folder}/{}/mod.rs", node.ident)];
        let found = candidates.iter().find(|path| self.tree.texts.contains_key(*path));
        found.cloned().ok_or_else(|| format!("{here}: the module {} is in neither of {candidates:?}", node.ident))
    }

    /// Adds the imports of a `use`. A re-export does not count as a use.
    fn import(&mut self, node: &UseTree, prefix: &mut Parts, is_re_export: bool) {
        match node {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix, is_re_export);
                prefix.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, prefix, is_re_export);
                }
            }
            UseTree::Glob(_) => self.module().globs.push(prefix.clone()),
            UseTree::Name(name) => self.alias(&name.ident, &name.ident, prefix, is_re_export),
            UseTree::Rename(rename) => self.alias(&rename.ident, &rename.rename, prefix, is_re_export),
        }
    }

    fn alias(&mut self, of: &syn::Ident, name: &syn::Ident, prefix: &[String], is_re_export: bool) {
        let mut path = prefix.to_vec();
        let name = if of == "self" {
            prefix.last().cloned().unwrap_or_default()
        } else {
            path.push(of.to_string());
            name.to_string()
        };
        let line = of.span().start().line;
        let module = self.module();
        module.aliases.entry(name).or_default().push(path.clone());
        if !is_re_export {
            module.uses.push((path, line));
        }
    }

    /// Notes a call of a method of the type whose `impl` is being read.
    fn call(&mut self, method: &syn::Ident) {
        if let Some(of) = self.of.clone() {
            let line = method.span().start().line;
            self.module().calls.push((Method { of, name: method.to_string() }, line));
        }
    }

    /// Adds the paths among the tokens of a macro, whose grammar is not known.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Parts = Vec::new();
        let (mut colons, mut line) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.take(&mut path, line);
                    }
                    line = ident.span().start().line;
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Group(group) => {
                    self.take(&mut path, line);
                    self.scan(group.stream());
                    colons = 0;
                }
                _ => {
                    self.take(&mut path, line);
                    colons = 0;
                }
            }
        }
        self.take(&mut path, line);
    }

    fn take(&mut self, path: &mut Parts, line: usize) {
        let path = std::mem::take(path);
        if !path.is_empty() {
            self.module().uses.push((path, line));
        }
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item(&mut self, node: &Item) {
        let (attributes, name): (&[Attribute], _) = match node {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::TraitAlias(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Union(item) => (&item.attrs, Some(&item.ident)),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Mod(item) => (&item.attrs, None),
            Item::Use(item) => (&item.attrs, None),
            Item::Impl(item) => (&item.attrs, None),
            _ => (&[], None),
        };
        if is_test(attributes) {
            return;
        }
        if let Some(name) = name {
            self.define(name);
        }
        let around = self.of.take();
        visit::visit_item(self, node);
        self.of = around;
    }

    fn visit_item_mod(&mut self, node: &ItemMod) {
        let child = match &node.content {
            Some((_, items)) => {
                let file = self.modules[self.current].file.clone();
                let id = self.enter(file, Some(self.current));
                self.visit_all(items, id);
                id
            }
            None => match self.file_of(node).and_then(|path| self.open(path, Some(self.current))) {
                Ok(id) => id,
                Err(error) => {
                    self.failed.get_or_insert(error);
                    return;
                }
            },
        };
        let name = node.ident.to_string();
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
                let methods = node.items.iter().filter_map(|item| match item {
                    ImplItem::Fn(method) => Some(Method { of: of.clone(), name: method.sig.ident.to_string() }),
                    _ => None,
                });
                let methods: Vec<_> = methods.collect();
                self.module().methods.extend(methods);
            }
            self.of = Some(of);
        }
        visit::visit_item_impl(self, node);
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
        let parts = parts(node);
        let line = node.segments.first().map_or(0, |segment| segment.ident.span().start().line);
        self.module().uses.push((parts, line));
        visit::visit_path(self, node);
    }

    fn visit_macro(&mut self, node: &Macro) {
        self.visit_path(&node.path);
        match node.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            Ok(arguments) => arguments.iter().for_each(|argument| self.visit_expr(argument)),
            Err(_) => self.scan(node.tokens.clone()),
        }
    }

    fn visit_attribute(&mut self, _: &Attribute) {}

    fn visit_visibility(&mut self, _: &Visibility) {}
}

/// The names of a path, without its arguments.
fn parts(path: &Path) -> Parts {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// Returns true if the attributes limit an item to tests.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition: String = list.tokens.to_string().split_whitespace().collect();
            condition == "test" || condition.starts_with("all(test,")
        }
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

/// Returns the file that `#[path = "…"]` names; `None` for other attributes.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else { return None };
    pair.path.is_ident("path").then(|| text.value())
}
