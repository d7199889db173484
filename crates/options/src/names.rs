//! The names of settings in sentences: the variables in the table of options.

use crate::entry::Entry;
use crate::table::TABLE;
use railweave_fabric::{SettingId, SettingNames};

/// Makes the sentences of all crates name settings by their variables. Call it once per process, before anything that
/// may fail; a second call has no effect.
pub fn name_settings() {
    SettingId::name_by(names);
}

fn names(setting: SettingId) -> SettingNames {
    match entry(setting) {
        Some(entry) => {
            let own = entry.variable();
            SettingNames { own, nccls: entry.all_variables().last().unwrap_or(own) }
        }
        None => {
            // `DmaBuf` is a setting of NCCL alone. The test below ensures that every other setting is in the table.
            let name = if setting == SettingId::DmaBuf { "NCCL_DMABUF_ENABLE" } else { setting.key() };
            SettingNames { own: name, nccls: name }
        }
    }
}

/// Returns the setting's entry in the table, if it is one of Railweave's.
fn entry(setting: SettingId) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.name == setting.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_in_the_table_and_named_by_its_variables() {
        for setting in SettingId::ALL.iter().copied() {
            assert_eq!(entry(setting).is_none(), setting == SettingId::DmaBuf, "{setting:?}");
        }
        assert_eq!(names(SettingId::GidIndex), SettingNames { own: "RAILWEAVE_GID_INDEX", nccls: "NCCL_IB_GID_INDEX" });
        assert_eq!(names(SettingId::RdmaRails), SettingNames { own: "RAILWEAVE_RDMA_RAILS", nccls: "NCCL_IB_HCA" });
        for (setting, nccls) in [
            (SettingId::AckTimeout, "NCCL_IB_TIMEOUT"),
            (SettingId::AddressFamily, "NCCL_IB_ADDR_FAMILY"),
            (SettingId::AddressRange, "NCCL_IB_ADDR_RANGE"),
            (SettingId::DmaBuf, "NCCL_DMABUF_ENABLE"),
            (SettingId::Ece, "NCCL_IB_ECE_ENABLE"),
            (SettingId::Library, "NCCL_IBVERBS_LIB"),
            (SettingId::PartitionKey, "NCCL_IB_PKEY"),
            (SettingId::RelaxedOrdering, "NCCL_IB_PCI_RELAXED_ORDERING"),
            (SettingId::RoceVersion, "NCCL_IB_ROCE_VERSION_NUM"),
        ] {
            assert_eq!(names(setting).nccls, nccls);
        }
        let alone = "RAILWEAVE_BYTE_COUNTS";
        assert_eq!(names(SettingId::ByteCounts), SettingNames { own: alone, nccls: alone });
    }
}
