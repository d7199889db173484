//! The names of NCCL's operations, types, algorithms and protocols (`nccl_common.h`, `nccl.h`), and their numbers,
//! which v1 of the interface has instead.

use std::ffi::CStr;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            text: &'static CStr,
            number: u8,
        }

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self { text: $text, number: $number };)*

            /// Returns the name that profilers see.
            #[must_use]
            pub const fn text(self) -> &'static CStr {
                self.text
            }

            /// Returns NCCL's own number.
            #[must_use]
            pub const fn number(self) -> u8 {
                self.number
            }
        }
    };
}

names! {
    /// An operation: `ncclFunc_t`.
    Function {
        /// A broadcast from a root.
        BROADCAST = 0 c"Broadcast",
        /// A reduction to a root.
        REDUCE = 1 c"Reduce",
        /// An all-gather.
        ALL_GATHER = 2 c"AllGather",
        /// A reduce-scatter.
        REDUCE_SCATTER = 3 c"ReduceScatter",
        /// An all-reduce.
        ALL_REDUCE = 4 c"AllReduce",
        /// A send to one rank.
        SEND = 6 c"Send",
        /// A receive from one rank.
        RECV = 7 c"Recv",
    }
}

names! {
    /// The type of elements: `ncclDataType_t`.
    DataType {
        /// Bytes.
        INT8 = 0 c"ncclInt8",
        /// Numbers of 32 bits with a binary point.
        FLOAT32 = 7 c"ncclFloat32",
    }
}

names! {
    /// An algorithm of collectives.
    Algorithm {
        /// Two trees.
        TREE = 0 c"TREE",
        /// A ring over all ranks.
        RING = 1 c"RING",
    }
}

names! {
    /// A protocol between GPUs.
    Protocol {
        /// Flags next to every 4 bytes.
        LL = 0 c"LL",
        /// Flags next to every 120 bytes.
        LL128 = 1 c"LL128",
        /// Data without flags.
        SIMPLE = 2 c"SIMPLE",
    }
}
