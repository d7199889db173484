//! The memory that messages take while they are kept.

use super::{Frame, Message, RailLanes};

impl Message {
    /// Returns about how many bytes of memory it takes.
    pub(crate) fn weight(&self) -> usize {
        let more = match self {
            Self::Offer(offer) => offer.ports.len() * 40 + offer.ways.targets.len() * 16 + offer.ways.routes.len(),
            Self::Answer { rails, .. } => rails.len() * 40,
            Self::Lanes(lanes) => lanes.rails.iter().fold(0, |bytes, rail| {
                bytes
                    + match rail {
                        RailLanes::Open { endpoints, .. } => 32 + endpoints.len() * 48,
                        RailLanes::Dropped { reason, .. } => 32 + reason.len(),
                    }
            }),
            Self::Refuse { reason, .. } => reason.len(),
            Self::Hello(bytes) => bytes.len(),
            Self::Rail(news) => news.message.weight(),
            _ => 0,
        };
        size_of::<Frame>() + more
    }
}
