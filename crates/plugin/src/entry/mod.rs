//! The functions that NCCL calls: a table for each version of its API, whose entries lead to `api`, and for the data
//! path to `data_path`.

mod api;
mod data_path;
mod ends;
mod guard;
mod tables;

pub use tables::{
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11,
    ncclNetPlugin_v12,
};
