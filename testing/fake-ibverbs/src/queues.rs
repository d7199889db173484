//! Making and ending completion queues and shared receive queues.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::AtomicU32;

use railweave_fabric_verbs::sys;

use crate::complaints::complain;
use crate::completions::CompletionQueue;
use crate::events::Source;
use crate::receives::{ReceiveQueue, SharedReceiveQueue};
use crate::world::{Used, World, await_acknowledgements, completion_queue, lock, shared_receive_queue, unknown};

type Answer<T> = Result<T, c_int>;

/// What a completion queue is to be like.
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
                "a completion queue of {} entries on vector {} is created; 1 to {longest} entries on vector 0 without a \
                 completion channel are allowed",
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
                "a shared receive queue of {} receives with {} pieces is created; 1 to {longest} with up to {pieces} are \
                 allowed",
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
            unacknowledged: AtomicU32::new(0),
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
}

/// Ends a completion queue; waits for acknowledgements without the world's lock.
pub(crate) fn destroy_cq(address: usize) -> Answer<()> {
    lock().remove_cq(address)?;
    if await_acknowledgements(&completion_queue(address).unacknowledged, "a completion queue") {
        // SAFETY: made by create_cq, and freed once: it was in the map. No queue pair uses it any more.
        drop(unsafe { Box::from_raw(with_exposed_provenance_mut::<CompletionQueue>(address)) });
    }
    Ok(())
}

/// Ends a shared receive queue; waits for acknowledgements without the world's lock.
pub(crate) fn destroy_srq(address: usize) -> Answer<()> {
    lock().remove_srq(address)?;
    if await_acknowledgements(&shared_receive_queue(address).unacknowledged, "a shared receive queue") {
        // SAFETY: made by create_srq, and freed once: it was in the map. No queue pair uses it any more.
        drop(unsafe { Box::from_raw(with_exposed_provenance_mut::<SharedReceiveQueue>(address)) });
    }
    Ok(())
}
