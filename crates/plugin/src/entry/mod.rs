//! The functions that NCCL calls: a table for each version of its API. Its entries lead to `data_path` for the data
//! path, and to `api` otherwise.

mod api;
mod data_path;
mod ends;
mod guard;
mod observed;
mod tables;

pub use tables::{
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11,
    ncclNetPlugin_v12,
};
