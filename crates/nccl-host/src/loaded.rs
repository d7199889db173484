//! A started plugin: [`NetApi`] over the calls of every version, made as NCCL makes them.

use crate::logger;
use crate::net::{
    Comm, Handle, ListenComm, MAX_PARTS, NetApi, NetError, Part, ProfilerHandle, Properties, RecvComm, Registration,
    Request, SendComm,
};
use crate::plugin::{Inner, Plugin};
use crate::profiler::{self, ProfilerPlugin};
use crate::table::{Table, each};
use railweave_abi::NcclResult;
use railweave_abi::net::parts::{CommConfig, VDeviceProps4, VDeviceProps8};
use railweave_abi::net::{OPTIONAL_RECV_COMPLETION, PTR_HOST, TRAFFIC_CLASS_UNDEF, optional_recv_completion};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, PoisonError};

/// A plugin started for one communicator; dropping it calls the API's `finalize`. Everything opened with it must be
/// closed first. A [`Connection`](crate::connection::Connection) borrows it, which ensures that for connections.
#[derive(Debug)]
pub struct LoadedNet {
    plugin: Arc<Inner>,
    /// The plugin's context from v11 on; NULL with an older version.
    context: *mut c_void,
    /// The configuration, which plugins may keep a pointer to.
    config: Box<UnsafeCell<CommConfig>>,
    /// The profiler whose callback the plugin has, so that it stays loaded.
    profiler: Option<Arc<profiler::Inner>>,
    /// True once `finalize` was called.
    finalized: bool,
}

// SAFETY: NCCL calls a plugin from several threads at once with one context; the configuration is not changed here.
unsafe impl Send for LoadedNet {}
// SAFETY: as above.
unsafe impl Sync for LoadedNet {}

impl Plugin {
    /// Starts the plugin for one communicator. `traffic_class` is used from v10 on.
    ///
    /// # Errors
    /// If the plugin's `init` fails.
    pub fn init(&self, comm_id: u64, traffic_class: Option<i32>) -> Result<LoadedNet, NetError> {
        self.init_with(comm_id, traffic_class, None)
    }

    /// As [`Self::init`], but the plugin gets the callback of a profiler, from v10 on. NCCL has one profiler, so a
    /// plugin may keep the callback of its first communicator for all: start all with the same one. Without a profiler,
    /// the callback does nothing.
    ///
    /// # Errors
    /// If the plugin's `init` fails.
    pub fn init_with(
        &self,
        comm_id: u64,
        traffic_class: Option<i32>,
        profiler: Option<&ProfilerPlugin>,
    ) -> Result<LoadedNet, NetError> {
        LoadedNet::start(Arc::clone(&self.inner), comm_id, traffic_class, profiler.map(ProfilerPlugin::shared))
    }
}

impl LoadedNet {
    fn start(
        plugin: Arc<Inner>,
        comm_id: u64,
        traffic_class: Option<i32>,
        profiler: Option<Arc<profiler::Inner>>,
    ) -> Result<Self, NetError> {
        let config = CommConfig { traffic_class: traffic_class.unwrap_or(TRAFFIC_CLASS_UNDEF) };
        let config = Box::new(UnsafeCell::new(config));
        let mut net = Self { plugin, context: null_mut(), config, profiler, finalized: false };
        // There is nothing to finalize unless `init` succeeds.
        net.finalized = true;
        net.init(comm_id)?;
        net.finalized = false;
        let (answer, path) = (net.devices()?, net.plugin.path.clone());
        // NCCL rejects such a plugin too, and then tries its next one.
        if answer <= 0 {
            return Err(NetError::NoDevice { plugin: net.plugin.name.clone(), path, answer });
        }
        Ok(net)
    }

    /// Ends the communicator with the API's `finalize` (v11 on; in older versions NCCL does not tell the plugin).
    ///
    /// # Errors
    /// If the plugin returns an error.
    pub fn finalize(mut self) -> Result<(), NetError> {
        self.finish()
    }

    /// Fuses `members`, indices of devices, into one more device and returns its index.
    ///
    /// # Errors
    /// If the plugin returns an error or cannot fuse, or if this version of the API does not allow this many members.
    pub fn fuse(&self, members: &[i32]) -> Result<i32, NetError> {
        let version = self.plugin.table.version();
        let cannot = || NetError::CannotFuse { plugin: self.plugin.name.clone(), version };
        let mut device = -1;
        macro_rules! make {
            ($net:ident, $props:ident) => {{
                let call = $net.make_v_device.ok_or_else(cannot)?;
                let mut props = $props { ndevs: members.len() as c_int, devs: [0; _] };
                let limit = props.devs.len();
                if !(1..=limit).contains(&members.len()) {
                    return Err(NetError::Members { members: members.len(), limit, version });
                }
                props.devs[..members.len()].copy_from_slice(members);
                // SAFETY: both are of the types that this version reads and writes.
                unsafe { call(&raw mut device, &raw mut props) }
            }};
        }
        let code = match self.plugin.table {
            Table::V6(_) | Table::V7(_) | Table::V8(_) => return Err(cannot()),
            Table::V9(net) => make!(net, VDeviceProps4),
            Table::V10(net) => make!(net, VDeviceProps4),
            Table::V11(net) => make!(net, VDeviceProps4),
            Table::V12(net) => make!(net, VDeviceProps8),
        };
        self.check("makeVDevice", code)?;
        if (0..self.devices()?).contains(&device) {
            return Ok(device);
        }
        Err(self.broken("makeVDevice", "success with an index that no device has"))
    }

    fn init(&mut self, comm_id: u64) -> Result<(), NetError> {
        let callback = self.profiler.as_ref().map_or(profiler::without_profiler as _, |profiler| profiler.callback());
        let (log, profiler) = (Some(logger::function()), Some(callback));
        let plugin = Arc::clone(&self.plugin);
        let mut started = plugin.starts.lock().unwrap_or_else(PoisonError::into_inner);
        let table = plugin.table;
        let code = if table.version() <= 10 && *started > 0 {
            NcclResult::SUCCESS
        } else {
            // SAFETY: the arguments are those of each version; the context and the configuration outlive the call.
            unsafe {
                match table {
                    Table::V6(net) => self.need("init", net.init)?(log),
                    Table::V7(net) => self.need("init", net.init)?(log),
                    Table::V8(net) => self.need("init", net.init)?(log),
                    Table::V9(net) => self.need("init", net.init)?(log),
                    Table::V10(net) => self.need("init", net.init)?(log, profiler),
                    Table::V11(net) => {
                        let context = &raw mut self.context;
                        self.need("init", net.init)?(context, comm_id, self.config.get(), log, profiler)
                    }
                    Table::V12(net) => {
                        let context = &raw mut self.context;
                        self.need("init", net.init)?(context, comm_id, self.config.get(), log, profiler)
                    }
                }
            }
        };
        self.check("init", code)?;
        *started += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), NetError> {
        if std::mem::replace(&mut self.finalized, true) {
            return Ok(());
        }
        *self.plugin.starts.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        let call = match self.plugin.table {
            Table::V11(net) => self.need("finalize", net.finalize)?,
            Table::V12(net) => self.need("finalize", net.finalize)?,
            _ => return Ok(()),
        };
        // SAFETY: the context is the one that init wrote, and this is its last use.
        self.check("finalize", unsafe { call(self.context) })
    }

    /// Returns a function of the table, or an error that names it.
    fn need<F>(&self, call: &'static str, function: Option<F>) -> Result<F, NetError> {
        function.ok_or_else(|| NetError::NullFunction {
            plugin: self.plugin.name.clone(),
            call,
            version: self.plugin.table.version(),
        })
    }

    fn check(&self, call: &'static str, code: NcclResult) -> Result<(), NetError> {
        if code.is_success() { Ok(()) } else { Err(self.failed(call, code)) }
    }

    fn failed(&self, call: &'static str, code: NcclResult) -> NetError {
        NetError::Call { plugin: self.plugin.name.clone(), call, code }
    }

    fn broken(&self, call: &'static str, what: &'static str) -> NetError {
        NetError::Broken { plugin: self.plugin.name.clone(), call, what }
    }

    /// Refuses a size that this version cannot express, as NCCL's own shims for old versions do.
    fn limit(&self, call: &'static str, bytes: usize, limit: Option<usize>) -> Result<(), NetError> {
        match limit {
            Some(limit) if bytes > limit => {
                Err(NetError::TooLarge { call, bytes, limit, version: self.plugin.table.version() })
            }
            _ => Ok(()),
        }
    }

    /// Refuses parts that are larger than this version allows.
    ///
    /// # Panics
    /// If there is no part, or there are more than [`MAX_PARTS`].
    fn check_parts(&self, call: &'static str, parts: &[Part]) -> Result<(), NetError> {
        assert!((1..=MAX_PARTS).contains(&parts.len()), "{call} of {} parts; allowed: 1 to {MAX_PARTS}", parts.len());
        parts.iter().try_for_each(|part| self.limit(call, part.bytes, self.plugin.table.message_limit()))
    }
}

impl NetApi for LoadedNet {
    fn devices(&self) -> Result<i32, NetError> {
        let call = self.need("devices", each!(self.plugin.table, net => net.devices))?;
        let mut count = 0;
        // SAFETY: `count` is an int for the plugin to write.
        self.check("devices", unsafe { call(&raw mut count) })?;
        Ok(count)
    }

    fn properties(&self, device: i32) -> Result<Properties, NetError> {
        // SAFETY: the plugin was started.
        let answer = self.need("getProperties", unsafe { self.plugin.table.properties(device) })?;
        answer.map_err(|code| self.failed("getProperties", code))
    }

    fn listen(&self, device: i32, handle: &mut Handle) -> Result<ListenComm, NetError> {
        let (handle, mut comm) = (handle.0.as_mut_ptr().cast(), null_mut());
        // SAFETY: the handle has the 128 bytes that the API requires.
        let code = unsafe {
            match self.plugin.table {
                Table::V6(net) => self.need("listen", net.listen)?(device, handle, &raw mut comm),
                Table::V7(net) => self.need("listen", net.listen)?(device, handle, &raw mut comm),
                Table::V8(net) => self.need("listen", net.listen)?(device, handle, &raw mut comm),
                Table::V9(net) => self.need("listen", net.listen)?(device, handle, &raw mut comm),
                Table::V10(net) => self.need("listen", net.listen)?(device, handle, &raw mut comm),
                Table::V11(net) => self.need("listen", net.listen)?(self.context, device, handle, &raw mut comm),
                Table::V12(net) => self.need("listen", net.listen)?(self.context, device, handle, &raw mut comm),
            }
        };
        self.check("listen", code)?;
        NonNull::new(comm).map(ListenComm::new).ok_or_else(|| self.broken("listen", "success with a NULL listen"))
    }

    fn connect(&self, device: i32, handle: &mut Handle) -> Result<Option<SendComm>, NetError> {
        let (handle, mut comm, mut offload) = (handle.0.as_mut_ptr().cast(), null_mut(), null_mut());
        let (to_comm, to_offload) = (&raw mut comm, &raw mut offload);
        let (context, config) = (self.context, self.config.get());
        // SAFETY: the handle has the 128 bytes of the listen; context and configuration live as long as `self`.
        let code = unsafe {
            match self.plugin.table {
                Table::V6(net) => self.need("connect", net.connect)?(device, handle, to_comm),
                Table::V7(net) => self.need("connect", net.connect)?(device, handle, to_comm, to_offload),
                Table::V8(net) => self.need("connect", net.connect)?(device, handle, to_comm, to_offload),
                Table::V9(net) => self.need("connect", net.connect)?(device, handle, to_comm, to_offload),
                Table::V10(net) => self.need("connect", net.connect)?(device, config, handle, to_comm, to_offload),
                Table::V11(net) => self.need("connect", net.connect)?(context, device, handle, to_comm, to_offload),
                Table::V12(net) => self.need("connect", net.connect)?(context, device, handle, to_comm, to_offload),
            }
        };
        self.check("connect", code)?;
        Ok(NonNull::new(comm).map(SendComm::new))
    }

    fn accept(&self, listen: &ListenComm) -> Result<Option<RecvComm>, NetError> {
        let (listen, mut comm, mut offload) = (listen.pointer(), null_mut(), null_mut());
        let (to_comm, to_offload) = (&raw mut comm, &raw mut offload);
        // SAFETY: the listen is open.
        let code = unsafe {
            match self.plugin.table {
                Table::V6(net) => self.need("accept", net.accept)?(listen, to_comm),
                Table::V7(net) => self.need("accept", net.accept)?(listen, to_comm, to_offload),
                Table::V8(net) => self.need("accept", net.accept)?(listen, to_comm, to_offload),
                Table::V9(net) => self.need("accept", net.accept)?(listen, to_comm, to_offload),
                Table::V10(net) => self.need("accept", net.accept)?(listen, to_comm, to_offload),
                Table::V11(net) => self.need("accept", net.accept)?(listen, to_comm, to_offload),
                Table::V12(net) => self.need("accept", net.accept)?(listen, to_comm, to_offload),
            }
        };
        self.check("accept", code)?;
        Ok(NonNull::new(comm).map(RecvComm::new))
    }

    unsafe fn reg_mr(&self, comm: Comm<'_>, data: NonNull<u8>, bytes: usize) -> Result<Registration, NetError> {
        self.limit("regMr", bytes, self.plugin.table.registration_limit())?;
        let (comm, data, mut registration) = (comm.pointer(), data.as_ptr().cast(), null_mut());
        let out = &raw mut registration;
        // Used for v6 and v7 only, where the limit above ensures that the size fits.
        let int = bytes as c_int;
        // SAFETY: the caller keeps the memory in place while it is registered.
        let code = unsafe {
            match self.plugin.table {
                Table::V6(net) => self.need("regMr", net.reg_mr)?(comm, data, int, PTR_HOST, out),
                Table::V7(net) => self.need("regMr", net.reg_mr)?(comm, data, int, PTR_HOST, out),
                Table::V8(net) => self.need("regMr", net.reg_mr)?(comm, data, bytes, PTR_HOST, out),
                Table::V9(net) => self.need("regMr", net.reg_mr)?(comm, data, bytes, PTR_HOST, out),
                Table::V10(net) => self.need("regMr", net.reg_mr)?(comm, data, bytes, PTR_HOST, out),
                Table::V11(net) => self.need("regMr", net.reg_mr)?(comm, data, bytes, PTR_HOST, out),
                Table::V12(net) => self.need("regMr", net.reg_mr)?(comm, data, bytes, PTR_HOST, out),
            }
        };
        self.check("regMr", code)?;
        Ok(Registration(registration))
    }

    unsafe fn dereg_mr(&self, comm: Comm<'_>, registration: Registration) -> Result<(), NetError> {
        let call = self.need("deregMr", each!(self.plugin.table, net => net.dereg_mr))?;
        // SAFETY: the caller's registration belongs to this connection.
        self.check("deregMr", unsafe { call(comm.pointer(), registration.0) })
    }

    unsafe fn isend_profiled(
        &self,
        comm: &SendComm,
        data: NonNull<u8>,
        bytes: usize,
        tag: i32,
        registration: Registration,
        profiler: ProfilerHandle,
    ) -> Result<Option<Request>, NetError> {
        self.limit("isend", bytes, self.plugin.table.message_limit())?;
        let (comm, data, mr, event) = (comm.pointer(), data.as_ptr().cast(), registration.0, profiler.pointer());
        let mut request = null_mut();
        let out = &raw mut request;
        // Used for v6 to v8 only, where the limit above ensures that the size fits.
        let int = bytes as c_int;
        // SAFETY: the caller keeps the registered data and the profiler's step in place until the request is done.
        let code = unsafe {
            match self.plugin.table {
                Table::V6(net) => self.need("isend", net.isend)?(comm, data, int, tag, mr, out),
                Table::V7(net) => self.need("isend", net.isend)?(comm, data, int, tag, mr, out),
                Table::V8(net) => self.need("isend", net.isend)?(comm, data, int, tag, mr, out),
                Table::V9(net) => self.need("isend", net.isend)?(comm, data, bytes, tag, mr, out),
                Table::V10(net) => self.need("isend", net.isend)?(comm, data, bytes, tag, mr, event, out),
                Table::V11(net) => self.need("isend", net.isend)?(comm, data, bytes, tag, mr, event, out),
                Table::V12(net) => self.need("isend", net.isend)?(comm, data, bytes, tag, mr, event, out),
            }
        };
        self.check("isend", code)?;
        Ok(NonNull::new(request).map(Request::new))
    }

    unsafe fn irecv_profiled(
        &self,
        comm: &RecvComm,
        parts: &[Part],
        completion_optional: bool,
        profiler: &[ProfilerHandle],
    ) -> Result<Option<Request>, NetError> {
        self.check_parts("irecv", parts)?;
        let (mut data, mut mrs) = ([null_mut(); MAX_PARTS], [null_mut(); MAX_PARTS]);
        let (mut sizes, mut ints, mut tags) = ([0_usize; MAX_PARTS], [0 as c_int; MAX_PARTS], [0 as c_int; MAX_PARTS]);
        for (index, part) in parts.iter().enumerate() {
            data[index] = part.data.as_ptr().cast();
            mrs[index] = part.registration.0;
            sizes[index] = part.bytes;
            // Used for v6 to v8 only, where the limit above ensures that the size fits.
            ints[index] = part.bytes as c_int;
            tags[index] = part.tag;
        }
        let (comm, n) = (comm.pointer(), parts.len() as c_int);
        let (data, mrs, tags) = (data.as_mut_ptr(), mrs.as_mut_ptr(), tags.as_mut_ptr());
        let (sizes, ints) = (sizes.as_mut_ptr(), ints.as_mut_ptr());
        assert!(profiler.is_empty() || profiler.len() == parts.len(), "a profiler's handle for each part, or for none");
        let mut events = [null_mut(); MAX_PARTS];
        events.iter_mut().zip(profiler).for_each(|(event, handle)| *event = handle.pointer());
        // NULL instead of the array is what NCCL's bootstrap passes.
        let events = if profiler.is_empty() { null_mut() } else { events.as_mut_ptr() };
        // NCCL's shims remove the hint for versions that do not know it.
        let hint = completion_optional && parts.len() == 1 && self.plugin.table.version() >= 9;
        let mut request = if hint { optional_recv_completion() } else { null_mut() };
        let out = &raw mut request;
        // SAFETY: every array has `n` entries, or is NULL where that is allowed; the caller leaves the registered
        // buffers alone and the profiler's steps in place until the request is done.
        let code = unsafe {
            match self.plugin.table {
                Table::V6(net) => self.need("irecv", net.irecv)?(comm, n, data, ints, tags, mrs, out),
                Table::V7(net) => self.need("irecv", net.irecv)?(comm, n, data, ints, tags, mrs, out),
                Table::V8(net) => self.need("irecv", net.irecv)?(comm, n, data, ints, tags, mrs, out),
                Table::V9(net) => self.need("irecv", net.irecv)?(comm, n, data, sizes, tags, mrs, out),
                Table::V10(net) => self.need("irecv", net.irecv)?(comm, n, data, sizes, tags, mrs, events, out),
                Table::V11(net) => self.need("irecv", net.irecv)?(comm, n, data, sizes, tags, mrs, events, out),
                Table::V12(net) => self.need("irecv", net.irecv)?(comm, n, data, sizes, tags, mrs, events, out),
            }
        };
        self.check("irecv", code)?;
        if request.addr() == OPTIONAL_RECV_COMPLETION {
            return Err(
                self.broken("irecv", "the hint 0x1 was left in *request; irecv must write *request in every call")
            );
        }
        Ok(NonNull::new(request).map(Request::new))
    }

    unsafe fn iflush(&self, comm: &RecvComm, parts: &[Part]) -> Result<Option<Request>, NetError> {
        self.check_parts("iflush", parts)?;
        let call = self.need("iflush", each!(self.plugin.table, net => net.iflush))?;
        let (mut data, mut mrs, mut sizes) =
            ([null_mut(); MAX_PARTS], [null_mut(); MAX_PARTS], [0 as c_int; MAX_PARTS]);
        for (index, part) in parts.iter().enumerate() {
            data[index] = part.data.as_ptr().cast();
            mrs[index] = part.registration.0;
            sizes[index] = c_int::try_from(part.bytes).unwrap_or(c_int::MAX);
        }
        let (n, mut request) = (parts.len() as c_int, null_mut());
        let (data, sizes, mrs) = (data.as_mut_ptr(), sizes.as_mut_ptr(), mrs.as_mut_ptr());
        // SAFETY: every array has `n` entries, and the caller's buffers are registered.
        let code = unsafe { call(comm.pointer(), n, data, sizes, mrs, &raw mut request) };
        self.check("iflush", code)?;
        Ok(NonNull::new(request).map(Request::new))
    }

    unsafe fn test(&self, request: &Request, sizes: Option<&mut [c_int; MAX_PARTS]>) -> Result<bool, NetError> {
        let call = self.need("test", each!(self.plugin.table, net => net.test))?;
        let sizes = sizes.map_or(null_mut(), |sizes| sizes.as_mut_ptr());
        let mut done = 0;
        // SAFETY: the caller's request is not done yet; there is room for the sizes of all parts that irecv takes.
        self.check("test", unsafe { call(request.pointer(), &raw mut done, sizes) })?;
        Ok(done != 0)
    }

    fn close_send(&self, comm: SendComm) -> Result<(), NetError> {
        let call = self.need("closeSend", each!(self.plugin.table, net => net.close_send))?;
        // SAFETY: the connection is open, and this is its last use.
        self.check("closeSend", unsafe { call(comm.pointer()) })
    }

    fn close_recv(&self, comm: RecvComm) -> Result<(), NetError> {
        let call = self.need("closeRecv", each!(self.plugin.table, net => net.close_recv))?;
        // SAFETY: the connection is open, and this is its last use.
        self.check("closeRecv", unsafe { call(comm.pointer()) })
    }

    fn close_listen(&self, listen: ListenComm) -> Result<(), NetError> {
        let call = self.need("closeListen", each!(self.plugin.table, net => net.close_listen))?;
        // SAFETY: the listen is open, and this is its last use.
        self.check("closeListen", unsafe { call(listen.pointer()) })
    }
}

impl Drop for LoadedNet {
    fn drop(&mut self) {
        // `finalize` returns the error to a caller who needs it.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests;
