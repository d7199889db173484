//! The life of queues and queue pairs: creation, state changes, destruction.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use railweave_fabric_verbs::sys;

use crate::complaints::complain;
use crate::description::DeviceFacts;
use crate::events::{Source, await_acknowledgements};
use crate::faults::Call;
use crate::pairs::{Gate, Manners, QueuePair, next_epoch};
use crate::profile::SendRing;
use crate::queues::{CompletionQueue, ReceiveQueue, SharedReceiveQueue};
use crate::reports::QpReport;
use crate::requests::Link;
use crate::transitions::Request;
use crate::world::{PairEntry, Used, World, completion_queue, lock, pair, shared_receive_queue, unknown};

type Answer<T> = Result<T, c_int>;

/// The arguments of ibv_create_cq.
pub(crate) struct CqWish {
    pub(crate) context: usize,
    pub(crate) entries: c_int,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut c_void,
    pub(crate) vector: c_int,
}

impl World {
    pub(crate) fn create_cq(&mut self, wish: &CqWish) -> Answer<*mut sys::Cq> {
        self.strike("create_cq")?;
        let open = self.context(wish.context)?;
        let (limit, longest, rounding) = {
            let facts = open.device.facts();
            (facts.max_cq, facts.max_cqe, facts.habits.completion_queue)
        };
        let fits = (1..=i64::from(longest)).contains(&i64::from(wish.entries));
        if !fits || wish.vector != 0 || !wish.channel.is_null() {
            complain(format_args!(
                "a completion queue of {} entries on vector {} is created; 1 to {longest} entries on vector 0 without \
                 a completion channel are allowed",
                wish.entries, wish.vector
            ));
            return Err(libc::EINVAL);
        }
        if self.completion_queues.values().filter(|used| used.context == wish.context).count() >= limit as usize {
            return Err(libc::ENOMEM);
        }
        // SAFETY: all zeros is valid for these plain fields and for an unlocked mutex and condition variable.
        let mut public: sys::Cq = unsafe { zeroed() };
        public.context = with_exposed_provenance_mut(wish.context);
        public.cq_context = wish.cq_context;
        let entries = rounding.apply(wish.entries as u32, longest);
        public.cqe = entries as c_int;
        let queue = CompletionQueue::new(public, entries as usize, open.events.clone());
        let queue = Box::into_raw(Box::new(queue));
        self.completion_queues.insert(queue.expose_provenance(), Used { context: wish.context, users: 0 });
        Ok(queue.cast())
    }

    pub(crate) fn create_srq(&mut self, domain: usize, wish: &sys::SrqInitAttributes) -> Answer<*mut sys::Srq> {
        self.strike("create_srq")?;
        let context = self.domains.get(&domain).ok_or_else(|| unknown("protection domain"))?.context;
        let (limit, longest, pieces, rounding) = {
            let facts = self.context(context)?.device.facts();
            facts.habits.shared_receives.when(true)?;
            (facts.max_srq, facts.max_srq_wr, facts.max_sge, facts.habits.shared_receive_queue)
        };
        if limit == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let attributes = wish.attr;
        if !(1..=longest).contains(&attributes.max_wr) || attributes.max_sge > pieces {
            complain(format_args!(
                "a shared receive queue of {} receives with {} pieces is created; 1 to {longest} with up to {pieces} \
                 are allowed",
                attributes.max_wr, attributes.max_sge
            ));
            return Err(libc::EINVAL);
        }
        if self.shared_receive_queues.values().filter(|used| used.context == context).count() >= limit as usize {
            return Err(libc::ENOMEM);
        }
        // SAFETY: all zeros is valid for these plain fields and for an unlocked mutex and condition variable.
        let mut public: sys::Srq = unsafe { zeroed() };
        public.context = with_exposed_provenance_mut(context);
        public.srq_context = wish.srq_context;
        public.pd = with_exposed_provenance_mut(domain);
        let queue = Box::into_raw(Box::new(SharedReceiveQueue {
            public,
            queue: ReceiveQueue::new(rounding.apply(attributes.max_wr, longest) as usize, attributes.max_sge),
        }));
        self.shared_receive_queues.insert(queue.expose_provenance(), Used { context, users: 0 });
        self.use_domain(domain);
        Ok(queue.cast())
    }

    fn remove_cq(&mut self, address: usize) -> Answer<()> {
        self.strike("destroy_cq")?;
        let used = self.completion_queues.get(&address).ok_or_else(|| unknown("completion queue"))?;
        if used.users > 0 {
            complain(format_args!("a completion queue is destroyed while {} queue pairs report to it", used.users));
            return Err(libc::EBUSY);
        }
        let context = used.context;
        self.context(context)?.events.forget(Source::Cq(address));
        completion_queue(address).count(self.past(context)?);
        self.completion_queues.remove(&address);
        Ok(())
    }

    fn remove_srq(&mut self, address: usize) -> Answer<()> {
        self.strike("destroy_srq")?;
        let used = self.shared_receive_queues.get(&address).ok_or_else(|| unknown("shared receive queue"))?;
        if used.users > 0 {
            complain(format_args!("a shared receive queue is destroyed while {} queue pairs use it", used.users));
            return Err(libc::EBUSY);
        }
        let context = used.context;
        self.context(context)?.events.forget(Source::Srq(address));
        let queue = shared_receive_queue(address);
        queue.queue.count(self.past(context)?);
        self.leave_domain(queue.public.pd.addr());
        self.shared_receive_queues.remove(&address);
        Ok(())
    }

    /// Returns the queue pair and the capabilities granted.
    pub(crate) fn create_qp(
        &mut self,
        domain: usize,
        wish: &sys::QpInitAttributes,
    ) -> Answer<(*mut sys::Qp, sys::QpCapabilities)> {
        self.strike("create_qp")?;
        let context = self.domains.get(&domain).ok_or_else(|| unknown("protection domain"))?.context;
        let open = self.context(context)?;
        let (device, events) = (open.device.clone(), open.events.clone());
        let (granted, manners) = {
            let facts = device.facts();
            check_capabilities(&facts, wish)?;
            if self.pairs.values().filter(|entry| entry.context == context).count() >= facts.max_qp as usize {
                return Err(libc::ENOMEM);
            }
            let habits = &facts.habits;
            let manners = Manners {
                byte_counts: facts.byte_counts,
                sent_bytes: habits.sent_bytes,
                inline_ignored: habits.inline_ignored,
                stale_completions: habits.stale_completions,
                last_receive_event: habits.last_receive_event,
            };
            (sys::QpInitAttributes { cap: facts.grant(wish)?, ..*wish }, manners)
        };
        let belongs = |used: Option<&Used>| used.is_some_and(|used| used.context == context);
        let queues = [wish.send_cq, wish.recv_cq];
        if !queues.iter().all(|queue| belongs(self.completion_queues.get(&queue.addr()))) {
            return Err(unknown("completion queue of this device"));
        }
        let shared = wish.srq.addr();
        if shared != 0 && !belongs(self.shared_receive_queues.get(&shared)) {
            return Err(unknown("shared receive queue of this device"));
        }
        let number = self.free_number();
        // SAFETY: all zeros is valid for these plain fields and for an unlocked mutex and condition variable.
        let mut public: sys::Qp = unsafe { zeroed() };
        public.context = with_exposed_provenance_mut(context);
        public.qp_context = wish.qp_context;
        public.pd = with_exposed_provenance_mut(domain);
        (public.send_cq, public.recv_cq, public.srq) = (wish.send_cq, wish.recv_cq, wish.srq);
        (public.handle, public.qp_num, public.qp_type) = (number, number, wish.qp_type);
        let receives: Option<*const ReceiveQueue> =
            (shared != 0).then(|| &raw const shared_receive_queue(shared).queue);
        let made = Box::into_raw(Box::new(QueuePair::new(public, domain, &granted, receives, manners, events)));
        let entry = PairEntry {
            context,
            device,
            created: *wish,
            granted: granted.cap,
            domain,
            attributes: sys::QpAttributes::default(),
            ece: None,
            cut: false,
            incarnation: 0,
            knows: AtomicU64::new(0),
        };
        let address = made.expose_provenance();
        self.numbers.insert(number, address);
        self.add_users(&entry, 1);
        self.pairs.insert(address, entry);
        Ok((made.cast(), granted.cap))
    }

    pub(crate) fn modify_qp(&mut self, address: usize, attributes: &sys::QpAttributes, mask: c_int) -> Answer<()> {
        let target = (mask & sys::QP_STATE != 0).then_some(attributes.qp_state);
        let device = self.device_of(address);
        self.strike_in(Call { function: "modify_qp", state: target, device: device.as_deref() })?;
        let entry = self.pairs.get_mut(&address).ok_or_else(|| unknown("queue pair"))?;
        let pair = pair(address);
        let mut sends = pair.sends.lock();
        let device = entry.device.facts();
        let request =
            Request { state: pair.state(), port: entry.attributes.port_num, device: &device, attributes, mask };
        let target = request.target();
        let stays = device.habits.stays_in_error && target == sys::QPS_RESET && request.state == sys::QPS_ERR;
        if let Err(reason) = request.check() {
            complain(format_args!("ibv_modify_qp of queue pair {:#x}: {reason}", pair.number));
            return Err(libc::EINVAL);
        }
        drop(device);
        match target {
            sys::QPS_RESET if stays => return Ok(()),
            sys::QPS_RESET => {
                pair.set_state(sys::QPS_RESET);
                // Writes that are being placed here complete before, and are forgotten.
                next_epoch();
                drop(sends);
                self.let_transfers_finish();
                sends = pair.sends.lock();
                pair.reset(&mut sends);
                let entry = self.pairs.get_mut(&address).ok_or_else(|| unknown("queue pair"))?;
                entry.attributes = sys::QpAttributes::default();
                entry.ece = None;
                entry.incarnation = 0;
                entry.knows.store(0, Ordering::Relaxed);
            }
            sys::QPS_ERR => pair.break_down(&mut sends, None),
            _ => {
                merge(&mut entry.attributes, attributes, mask);
                if target == sys::QPS_RTR {
                    self.last_incarnation += 1;
                    entry.incarnation = self.last_incarnation;
                }
                pair.set_state(target);
            }
        }
        sends.gate = Gate::Shut;
        drop(sends);
        self.after_change();
        Ok(())
    }

    pub(crate) fn query_qp(&mut self, address: usize) -> Answer<(sys::QpAttributes, sys::QpInitAttributes)> {
        let device = self.device_of(address);
        self.strike_in(Call { function: "query_qp", state: None, device: device.as_deref() })?;
        let entry = self.pairs.get(&address).ok_or_else(|| unknown("queue pair"))?;
        entry.device.facts().habits.query_pair.when(true)?;
        let state = pair(address).state();
        let attributes =
            sys::QpAttributes { qp_state: state, cur_qp_state: state, cap: entry.granted, ..entry.attributes };
        Ok((attributes, sys::QpInitAttributes { cap: entry.granted, ..entry.created }))
    }

    pub(crate) fn query_ece(&mut self, address: usize) -> Answer<sys::Ece> {
        self.strike("query_ece")?;
        let entry = self.pairs.get(&address).ok_or_else(|| unknown("queue pair"))?;
        let offered = entry.device.facts().ece().ok_or(libc::EOPNOTSUPP)?;
        Ok(entry.ece.unwrap_or(offered))
    }

    pub(crate) fn set_ece(&mut self, address: usize, wish: sys::Ece) -> Answer<()> {
        self.strike("set_ece")?;
        let entry = self.pairs.get_mut(&address).ok_or_else(|| unknown("queue pair"))?;
        let offered = entry.device.facts().ece().ok_or(libc::EOPNOTSUPP)?;
        let pair = pair(address);
        let early = matches!(pair.state(), sys::QPS_RESET | sys::QPS_INIT);
        let known = wish.vendor_id == 0 || wish.vendor_id == offered.vendor_id;
        if !early || !known || wish.comp_mask != 0 {
            complain(format_args!(
                "ibv_set_ece of queue pair {:#x} with vendor {:#x}; vendor {:#x} is allowed, before RTR",
                pair.number, wish.vendor_id, offered.vendor_id
            ));
            return Err(libc::EINVAL);
        }
        entry.ece = Some(sys::Ece { options: wish.options & offered.options, ..wish });
        Ok(())
    }

    /// Applies a change of queue pairs or ports to pending work.
    pub(crate) fn after_change(&self) {
        next_epoch();
        self.carry_on();
    }

    /// Ends the waiting of each queue pair that `meant` selects: fails the oldest pending work, like a card whose
    /// retries are exhausted, or completes all of it ([`Link::Take`]).
    pub(crate) fn end_waiting(&self, link: Link, meant: impl Fn(&PairEntry, &QueuePair) -> bool) {
        for (_, pair) in self.each_pair().filter(|(entry, pair)| meant(entry, pair)) {
            let mut sends = pair.sends.lock();
            if link == Link::Take {
                pair.take_held(&mut sends);
                continue;
            }
            pair.fail_oldest(&mut sends, sys::WC_RETRY_EXC_ERR);
            sends.wreck = None;
        }
        self.after_change();
    }

    /// Reports on all open queue pairs, in rising order of their numbers.
    pub(crate) fn reports(&self) -> Vec<QpReport> {
        let all = self.numbers.keys().filter_map(|&number| self.pair_of(number));
        let report = |(entry, pair): (&PairEntry, &QueuePair)| QpReport {
            number: pair.number,
            state: pair.state(),
            device: entry.device.facts().name.clone(),
            capabilities: entry.created.cap,
            shared_receives: !entry.created.srq.is_null(),
            receives: pair.receives().waiting() as u32,
            ece: entry.ece.unwrap_or_default(),
            attributes: entry.attributes,
        };
        all.map(report).collect()
    }

    fn remove_qp(&mut self, address: usize) -> Answer<()> {
        let device = self.device_of(address);
        self.strike_in(Call { function: "destroy_qp", state: None, device: device.as_deref() })?;
        let entry = self.pairs.remove(&address).ok_or_else(|| unknown("queue pair"))?;
        let pair = pair(address);
        self.numbers.remove(&pair.number);
        next_epoch();
        self.let_transfers_finish();
        pair.forget_completions();
        pair.count(self.past(entry.context)?);
        self.context(entry.context)?.events.forget(Source::Qp(address));
        self.add_users(&entry, -1);
        self.carry_on();
        Ok(())
    }

    fn add_users(&mut self, entry: &PairEntry, change: i32) {
        let created = &entry.created;
        for queue in [created.send_cq.addr(), created.recv_cq.addr()] {
            if let Some(used) = self.completion_queues.get_mut(&queue) {
                used.users = used.users.wrapping_add_signed(change);
            }
        }
        if let Some(used) = self.shared_receive_queues.get_mut(&created.srq.addr()) {
            used.users = used.users.wrapping_add_signed(change);
        }
        if let Some(used) = self.domains.get_mut(&entry.domain) {
            used.users = used.users.wrapping_add_signed(change);
        }
    }

    /// Returns a number that no queue pair has and that was not in use recently. Each process starts at another number,
    /// so that a peer in another process is not mistaken for one in this process.
    fn free_number(&mut self) -> u32 {
        const LOWEST: u32 = 0x100;
        const HIGHEST: u32 = 0xff_fffe;
        if self.last_number == 0 {
            self.last_number = (std::process::id() << 12) & HIGHEST;
        }
        loop {
            self.last_number = if self.last_number >= HIGHEST { LOWEST } else { (self.last_number + 1).max(LOWEST) };
            if !self.numbers.contains_key(&self.last_number) {
                return self.last_number;
            }
        }
    }
}

/// Destroys a completion queue. Waits for acknowledgements of events without holding the world's lock.
pub(crate) fn destroy_cq(address: usize) -> Answer<()> {
    lock().remove_cq(address)?;
    if await_acknowledgements(address, "a completion queue") {
        // SAFETY: made by create_cq, and freed once: it was in the map. No queue pair uses it.
        drop(unsafe { Box::from_raw(with_exposed_provenance_mut::<CompletionQueue>(address)) });
    }
    Ok(())
}

/// Destroys a shared receive queue. Waits for acknowledgements of events without holding the world's lock.
pub(crate) fn destroy_srq(address: usize) -> Answer<()> {
    lock().remove_srq(address)?;
    if await_acknowledgements(address, "a shared receive queue") {
        // SAFETY: made by create_srq, and freed once: it was in the map. No queue pair uses it.
        drop(unsafe { Box::from_raw(with_exposed_provenance_mut::<SharedReceiveQueue>(address)) });
    }
    Ok(())
}

/// Destroys a queue pair. Waits for acknowledgements of events without holding the world's lock.
pub(crate) fn destroy_qp(address: usize) -> Answer<()> {
    lock().remove_qp(address)?;
    if await_acknowledgements(address, "a queue pair") {
        // SAFETY: made by create_qp, and freed once: it was in the map. No transfer in progress uses it (`remove_qp`),
        // and no new one finds it.
        drop(unsafe { Box::from_raw(with_exposed_provenance_mut::<QueuePair>(address)) });
    }
    Ok(())
}

/// The sizes of one piece in a request, and of the header before inline data, in bytes.
const PIECE_BYTES: u32 = 16;
const INLINE_HEAD_BYTES: u32 = 4;

impl DeviceFacts {
    /// Returns the capabilities granted for those asked for, which must be within the device's limits. Fails if the
    /// send queue would be too long, or if the device refuses a queue pair without receives.
    fn grant(&self, asked: &sys::QpInitAttributes) -> Result<sys::QpCapabilities, c_int> {
        let (wish, habits) = (asked.cap, &self.habits);
        let own_receives = asked.srq.is_null();
        habits.empty_receive_queue.when(own_receives && wish.max_recv_wr == 0)?;
        let most = self.max_qp_wr;
        let receives = if own_receives { habits.receive_queue.apply(wish.max_recv_wr, most) } else { wish.max_recv_wr };
        let granted = sys::QpCapabilities {
            max_send_wr: habits.send_queue.apply(wish.max_send_wr, most),
            max_recv_wr: receives,
            max_inline_data: wish.max_inline_data.max(habits.least_inline),
            ..wish
        };
        match habits.send_ring {
            Some(ring) if wish.max_send_wr > 0 => ring.grant(granted),
            _ => Ok(granted),
        }
    }
}

impl SendRing {
    fn grant(&self, wish: sys::QpCapabilities) -> Result<sys::QpCapabilities, c_int> {
        let inline = match wish.max_inline_data {
            0 => 0,
            bytes => (INLINE_HEAD_BYTES + bytes).next_multiple_of(PIECE_BYTES),
        };
        let request = self.overhead + inline.max(wish.max_send_sge * PIECE_BYTES);
        let request = request.next_multiple_of(self.unit);
        let ring = (u64::from(wish.max_send_wr) * u64::from(request)).next_power_of_two();
        if request > self.longest.next_multiple_of(self.unit) || ring > self.bytes.into() {
            return Err(libc::EINVAL);
        }
        Ok(sys::QpCapabilities {
            max_send_wr: (ring / u64::from(request)) as u32,
            max_inline_data: request - self.overhead - INLINE_HEAD_BYTES,
            ..wish
        })
    }
}

fn check_capabilities(facts: &DeviceFacts, wish: &sys::QpInitAttributes) -> Answer<()> {
    let asked = &wish.cap;
    if wish.qp_type != sys::QPT_RC || wish.sq_sig_all != 0 {
        complain(format_args!(
            "a queue pair of type {} with sq_sig_all {} is created; type {} (reliable connection) with 0 is allowed",
            wish.qp_type,
            wish.sq_sig_all,
            sys::QPT_RC
        ));
        return Err(libc::EOPNOTSUPP);
    }
    for (name, value, limit) in [
        ("max_send_wr", asked.max_send_wr, facts.max_qp_wr),
        ("max_recv_wr", asked.max_recv_wr, facts.max_qp_wr),
        ("max_send_sge", asked.max_send_sge, facts.max_sge),
        ("max_recv_sge", asked.max_recv_sge, facts.max_sge),
        ("max_inline_data", asked.max_inline_data, facts.max_inline),
    ] {
        if value > limit {
            complain(format_args!("a queue pair is created with {name} {value}; up to {limit} are allowed"));
            return Err(libc::EINVAL);
        }
    }
    Ok(())
}

/// Copies the attributes that `mask` selects.
fn merge(all: &mut sys::QpAttributes, given: &sys::QpAttributes, mask: c_int) {
    macro_rules! take {
        ($($bit:ident: $field:ident),* $(,)?) => {
            $(if mask & sys::$bit != 0 { all.$field = given.$field; })*
        };
    }
    take! {
        QP_ACCESS_FLAGS: qp_access_flags,
        QP_PKEY_INDEX: pkey_index,
        QP_PORT: port_num,
        QP_AV: ah_attr,
        QP_PATH_MTU: path_mtu,
        QP_TIMEOUT: timeout,
        QP_RETRY_CNT: retry_cnt,
        QP_RNR_RETRY: rnr_retry,
        QP_RQ_PSN: rq_psn,
        QP_MAX_QP_RD_ATOMIC: max_rd_atomic,
        QP_MIN_RNR_TIMER: min_rnr_timer,
        QP_SQ_PSN: sq_psn,
        QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
        QP_DEST_QPN: dest_qp_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{DEFAULT, Machine};
    use crate::profile::PLAIN;

    fn device(profile: &str) -> DeviceFacts {
        Machine::described(DEFAULT, profile).expect("well-formed").devices.remove(0)
    }

    fn wish(sends: u32, receives: u32, inline: u32) -> sys::QpInitAttributes {
        // SAFETY: all zeros is valid for these plain fields.
        let mut wish: sys::QpInitAttributes = unsafe { zeroed() };
        wish.cap = sys::QpCapabilities {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        wish
    }

    #[test]
    fn a_strict_adapter_grants_what_is_asked_for() {
        let plain = device(PLAIN);
        let granted = plain.grant(&wish(100, 0, 64)).expect("within its limits");
        assert_eq!((granted.max_send_wr, granted.max_recv_wr, granted.max_inline_data), (100, 0, 64));
    }

    #[test]
    fn inline_data_of_a_connectx_takes_room_from_its_send_queue() {
        let card = device("connectx-7");
        let grant = |sends, inline| card.grant(&wish(sends, 100, inline));
        let granted = grant(100, 0).expect("within its limits");
        assert_eq!((granted.max_send_wr, granted.max_recv_wr, granted.max_inline_data), (128, 128, 60));
        let granted = grant(100, 64).expect("within its limits");
        assert_eq!((granted.max_send_wr, granted.max_inline_data), (102, 124));
        assert_eq!(grant(8192, 0).map(|granted| granted.max_send_wr), Ok(8192));
        assert_eq!(grant(8192, 64).map(|granted| granted.max_send_wr), Err(libc::EINVAL), "too long with inline data");
        assert!(grant(1, 812).is_ok() && grant(1, 850).is_err());
    }

    #[test]
    fn an_adapter_may_want_receives_of_every_queue_pair() {
        let mana = device("mana");
        assert_eq!(mana.grant(&wish(64, 0, 64)).map(|_| ()), Err(libc::ENOMEM));
        assert!(mana.grant(&wish(64, 1, 64)).is_ok());
    }
}
