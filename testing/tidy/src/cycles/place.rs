//! The files in which Rust looks for the modules that a file declares.

use syn::ext::IdentExt as _;
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, ItemMod, Lit, Meta, MetaNameValue, Token};

use crate::tree::{Tree, join};

/// The place of a module in the tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The folder of its file, with the names of the blocks around the module.
    folder: String,
    /// The folder below it that has the files of the module's children: the name of its file, unless that is `mod.rs`,
    /// a crate's root or named by `#[path]`.
    below: Option<String>,
}

impl Place {
    /// Returns the place of a crate's root, and of a module whose file `#[path]` names.
    pub(super) fn of_root(file: &str) -> Self {
        Self { folder: file.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned(), below: None }
    }

    /// Returns the place of the block `node` within this module; `None` if it leaves the tree.
    pub(super) fn of_block(&self, node: &ItemMod) -> Option<Self> {
        let folder = match paths(&node.attrs).first() {
            Some(path) => join(&self.folder, path)?,
            None => join(&self.children(), &node.ident.unraw().to_string())?,
        };
        Some(Self { folder, below: None })
    }

    /// Returns the file of the module that `node` declares within this one, and its place. If conditions choose between
    /// several files, the first that is in the tree is meant. Fails with the files in which Rust would look.
    pub(super) fn of_file(&self, tree: &Tree, node: &ItemMod) -> Result<(String, Self), Vec<String>> {
        let name = node.ident.unraw().to_string();
        let named = paths(&node.attrs).into_iter().map(|path| (join(&self.folder, &path), None));
        let children = self.children();
        let beside = join(&children, &format!("{name}.rs"));
        let within = join(&children, &format!("{name}/mod.rs"));
        let mut files = Vec::new();
        for (file, below) in named.chain([(beside, Some(name)), (within, None)]) {
            let Some(file) = file else { continue };
            if tree.has(&file) {
                let place = Self { below, ..Self::of_root(&file) };
                return Ok((file, place));
            }
            files.push(file);
        }
        Err(files)
    }

    fn children(&self) -> String {
        self.below.iter().fold(self.folder.clone(), |folder, below| format!("{folder}/{below}"))
    }
}

/// Returns the paths that `#[path = "…"]` and `#[cfg_attr(…, path = "…")]` name.
fn paths(attributes: &[Attribute]) -> Vec<String> {
    let paths = attributes.iter().flat_map(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg_attr") => {
            let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            inner.into_iter().flatten().filter_map(|meta| path(&meta)).collect()
        }
        meta => Vec::from_iter(path(meta)),
    });
    paths.collect()
}

/// Returns the text of `path = "…"`.
fn path(meta: &Meta) -> Option<String> {
    match meta {
        Meta::NameValue(MetaNameValue { path, value: Expr::Lit(ExprLit { lit: Lit::Str(text), .. }), .. })
            if path.is_ident("path") =>
        {
            Some(text.value())
        }
        _ => None,
    }
}
