//! Calls a plugin made of static tables with every version of the API; the plugin records the calls.

use super::*;
use railweave_abi::net::calls::{
    AcceptV6, AcceptV7, ConnectV6, ConnectV7, ConnectV10, ConnectV11, InitV6, InitV10, InitV11, IrecvV6, IrecvV9,
    IrecvV10, IsendV6, IsendV9, IsendV10, ListenV6, ListenV11, MakeVDevice, RegMrV6, RegMrV8,
};
use railweave_abi::net::parts::{DeviceHandle, VDeviceProps4, VDeviceProps8};
use railweave_abi::net::{PTR_CUDA, v6, v7, v8, v9, v10, v11, v12};
use railweave_abi::profiler::{EventCall, EventState, EventType, parts, v6 as profiler_v6};
use railweave_abi::{NcclLogger, ProfilerCallback};
use std::cell::{Cell, RefCell};
use std::ffi::c_char;
use std::path::Path;

const CONTEXT: usize = 0x77;
const OK: NcclResult = NcclResult::SUCCESS;

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static CALLBACK: Cell<Option<ProfilerCallback>> = const { Cell::new(None) };
    static EVENT: Cell<*mut c_void> = const { Cell::new(null_mut()) };
}

/// Tells the host's profiler about a request's event, as a net plugin does.
fn report(kind: EventCall, handle: *mut c_void) {
    let (mut event, callback) = (EVENT.get(), CALLBACK.get().expect("init was called with the callback"));
    // SAFETY: the host's own handle, while it keeps the step in place.
    let code = unsafe { callback(&raw mut event, kind.0, handle, 0x1_0001, null_mut()) };
    assert!(code.is_success());
    EVENT.set(if kind == EventCall::START { event } else { null_mut() });
}

fn note(text: String) -> NcclResult {
    CALLS.with_borrow_mut(|calls| calls.push(text));
    OK
}

fn calls() -> Vec<String> {
    CALLS.take()
}

fn pointer(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

unsafe extern "C" fn init_v6(log: Option<NcclLogger>) -> NcclResult {
    note(format!("init {}", log.is_some()))
}
unsafe extern "C" fn init_v10(log: Option<NcclLogger>, profiler: Option<ProfilerCallback>) -> NcclResult {
    CALLBACK.set(profiler);
    note(format!("init {} {}", log.is_some(), profiler.is_some()))
}
unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    comm_id: u64,
    config: *mut CommConfig,
    log: Option<NcclLogger>,
    profiler: Option<ProfilerCallback>,
) -> NcclResult {
    // SAFETY: the host passes both pointers.
    let class = unsafe {
        *context = pointer(CONTEXT);
        (*config).traffic_class
    };
    CALLBACK.set(profiler);
    note(format!("init {comm_id} class {class} {} {}", log.is_some(), profiler.is_some()))
}
unsafe extern "C" fn devices(count: *mut c_int) -> NcclResult {
    // SAFETY: the host passes the pointer.
    unsafe { *count = 3 };
    OK
}
unsafe extern "C" fn listen_v6(device: c_int, _handle: *mut c_void, listen: *mut *mut c_void) -> NcclResult {
    // SAFETY: the host passes the pointer.
    unsafe { *listen = pointer(0x10) };
    note(format!("listen {device}"))
}
unsafe extern "C" fn listen_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listen: *mut *mut c_void,
) -> NcclResult {
    assert_eq!(context.addr(), CONTEXT);
    // SAFETY: the host's own arguments.
    unsafe { listen_v6(device, handle, listen) }
}
unsafe extern "C" fn connect_v6(device: c_int, handle: *mut c_void, send: *mut *mut c_void) -> NcclResult {
    // SAFETY: the host passes 128 bytes that stay in place, and the pointer.
    unsafe {
        let polls = handle.cast::<u8>().add(127);
        *polls += 1;
        if *polls == 2 {
            *send = pointer(0x20);
        }
        note(format!("connect {device} poll {}", *polls))
    }
}
unsafe extern "C" fn connect_v7(
    device: c_int,
    handle: *mut c_void,
    send: *mut *mut c_void,
    offload: *mut *mut DeviceHandle,
) -> NcclResult {
    assert!(!offload.is_null());
    // SAFETY: the host's own arguments.
    unsafe { connect_v6(device, handle, send) }
}
unsafe extern "C" fn connect_v10(
    device: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    send: *mut *mut c_void,
    offload: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: the host's own arguments.
    unsafe {
        assert_eq!((*config).traffic_class, 5);
        connect_v7(device, handle, send, offload)
    }
}
unsafe extern "C" fn connect_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    send: *mut *mut c_void,
    offload: *mut *mut DeviceHandle,
) -> NcclResult {
    assert_eq!(context.addr(), CONTEXT);
    // SAFETY: the host's own arguments.
    unsafe { connect_v7(device, handle, send, offload) }
}
unsafe extern "C" fn accept_v6(listen: *mut c_void, receive: *mut *mut c_void) -> NcclResult {
    assert_eq!(listen.addr(), 0x10);
    // SAFETY: the host passes the pointer.
    unsafe { *receive = pointer(0x30) };
    OK
}
unsafe extern "C" fn accept_v7(
    listen: *mut c_void,
    receive: *mut *mut c_void,
    offload: *mut *mut DeviceHandle,
) -> NcclResult {
    assert!(!offload.is_null());
    // SAFETY: the host's own arguments.
    unsafe { accept_v6(listen, receive) }
}
unsafe extern "C" fn reg_mr_v6(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the host's own arguments.
    unsafe { reg_mr_v8(comm, data, bytes as usize, kind, memory) }
}
unsafe extern "C" fn reg_mr_v8(
    comm: *mut c_void,
    _data: *mut c_void,
    bytes: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the host passes the pointer.
    unsafe { *memory = pointer(0x50) };
    note(format!("regMr {:x} {bytes} kind {kind}", comm.addr()))
}
unsafe extern "C" fn dereg_mr(_comm: *mut c_void, memory: *mut c_void) -> NcclResult {
    note(format!("deregMr {:x}", memory.addr()))
}
unsafe extern "C" fn isend_v10(
    send: *mut c_void,
    _data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    profiler: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    assert_eq!((send.addr(), memory.addr()), (0x20, 0x50));
    if !profiler.is_null() {
        report(EventCall::START, profiler);
    }
    // SAFETY: the host passes the pointer.
    unsafe { *request = pointer(0x60) };
    note(format!("isend {bytes} tag {tag}"))
}
unsafe extern "C" fn isend_v9(
    send: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the host's own arguments.
    unsafe { isend_v10(send, data, bytes, tag, memory, null_mut(), request) }
}
unsafe extern "C" fn isend_v6(
    send: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the host's own arguments.
    unsafe { isend_v9(send, data, bytes as usize, tag, memory, request) }
}
unsafe extern "C" fn irecv_v10(
    _receive: *mut c_void,
    n: c_int,
    _data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    _memory: *mut *mut c_void,
    profiler: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the host passes arrays of `n`, of which that of the profiler may be NULL, and the pointer.
    unsafe {
        if !profiler.is_null() {
            for handle in std::slice::from_raw_parts(profiler, n as usize) {
                report(EventCall::START, *handle);
                report(EventCall::STOP, null_mut());
            }
        }
        let (bytes, tags) =
            (std::slice::from_raw_parts(bytes, n as usize), std::slice::from_raw_parts(tags, n as usize));
        let preset = (*request).addr();
        // With tag 99, this plugin makes the mistake of leaving the hint in place.
        if tags[0] != 99 {
            *request = null_mut();
        }
        note(format!("irecv {bytes:?} tags {tags:?} preset {preset}"))
    }
}
unsafe extern "C" fn irecv_v9(
    receive: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the host's own arguments.
    unsafe { irecv_v10(receive, n, data, bytes, tags, memory, null_mut(), request) }
}
unsafe extern "C" fn irecv_v6(
    receive: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    bytes: *mut c_int,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the host's own arguments, with wider sizes.
    unsafe {
        let mut wide: Vec<usize> = std::slice::from_raw_parts(bytes, n as usize).iter().map(|b| *b as usize).collect();
        irecv_v9(receive, n, data, wide.as_mut_ptr(), tags, memory, request)
    }
}
unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, bytes: *mut c_int) -> NcclResult {
    assert_eq!(request.addr(), 0x60);
    if !EVENT.get().is_null() {
        report(EventCall::STOP, null_mut());
    }
    // SAFETY: the host passes the pointer.
    unsafe { *done = 1 };
    note(format!("test sizes {}", !bytes.is_null()))
}
unsafe extern "C" fn fail(_comm: *mut c_void) -> NcclResult {
    NcclResult::REMOTE_ERROR
}
unsafe extern "C" fn close(_comm: *mut c_void) -> NcclResult {
    OK
}
unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    note(format!("finalize {:x}", context.addr()))
}
unsafe extern "C" fn properties_v6(_device: c_int, out: *mut v6::NetProperties) -> NcclResult {
    let name: *const c_char = c"six".as_ptr();
    let pci_path = std::ptr::null();
    let (guid, ptr_support, speed, port, latency) = (7, PTR_CUDA, 100, 1, 0.5);
    // SAFETY: the host passes the memory.
    unsafe {
        out.write(v6::NetProperties {
            name,
            pci_path,
            guid,
            ptr_support,
            speed,
            port,
            latency,
            max_comms: 9,
            max_recvs: 8,
        });
    }
    OK
}
unsafe extern "C" fn properties_v12(_device: c_int, out: *mut v12::NetProperties) -> NcclResult {
    // SAFETY: the host passes the memory, zeroed.
    unsafe {
        (*out).name = c"twelve".as_ptr();
        (*out).pci_path = c"/sys/pci".as_ptr();
        (*out).v_props.ndevs = 2;
        (*out).v_props.devs[1] = 4;
        (*out).max_p2p_bytes = 1 << 40;
        (*out).plane_id = 3;
        (*out).force_flush = 1;
    }
    OK
}

/// Fuses a set that begins with device 1 into device 2, the last one; for any other set, writes an index that no device
/// has.
fn fused(members: &[c_int], device: *mut c_int) -> NcclResult {
    // SAFETY: the host passes the pointer.
    unsafe { *device = if members[0] == 1 { 2 } else { 3 } };
    note(format!("makeVDevice {members:?}"))
}
unsafe extern "C" fn make_v_device_v9(device: *mut c_int, members: *mut VDeviceProps4) -> NcclResult {
    // SAFETY: the host passes the structure.
    let VDeviceProps4 { ndevs, devs } = unsafe { *members };
    fused(&devs[..ndevs as usize], device)
}
unsafe extern "C" fn make_v_device_v12(device: *mut c_int, members: *mut VDeviceProps8) -> NcclResult {
    // SAFETY: the host passes the structure.
    let VDeviceProps8 { ndevs, devs } = unsafe { *members };
    fused(&devs[..ndevs as usize], device)
}

macro_rules! table {
    ($module:ident, $($more:tt)*) => {{
        static TABLE: $module::Net = $module::Net {
            name: c"static".as_ptr(),
            devices: Some(devices),
            reg_mr_dma_buf: None,
            dereg_mr: Some(dereg_mr),
            iflush: None,
            test: Some(test),
            close_send: Some(fail),
            close_recv: Some(close),
            close_listen: Some(close),
            $($more)*
        };
        &TABLE
    }};
}

/// Returns a table for every version. Versions with the same form of a call share its function.
fn tables() -> [Table; 7] {
    const I6: Option<InitV6> = Some(init_v6);
    const I10: Option<InitV10> = Some(init_v10);
    const I11: Option<InitV11> = Some(init_v11);
    const L6: Option<ListenV6> = Some(listen_v6);
    const L11: Option<ListenV11> = Some(listen_v11);
    const C6: Option<ConnectV6> = Some(connect_v6);
    const C7: Option<ConnectV7> = Some(connect_v7);
    const C10: Option<ConnectV10> = Some(connect_v10);
    const C11: Option<ConnectV11> = Some(connect_v11);
    const A6: Option<AcceptV6> = Some(accept_v6);
    const A7: Option<AcceptV7> = Some(accept_v7);
    const M6: Option<RegMrV6> = Some(reg_mr_v6);
    const M8: Option<RegMrV8> = Some(reg_mr_v8);
    const S6: Option<IsendV6> = Some(isend_v6);
    const S9: Option<IsendV9> = Some(isend_v9);
    const S10: Option<IsendV10> = Some(isend_v10);
    const R6: Option<IrecvV6> = Some(irecv_v6);
    const R9: Option<IrecvV9> = Some(irecv_v9);
    const R10: Option<IrecvV10> = Some(irecv_v10);
    const V9: Option<MakeVDevice<VDeviceProps4>> = Some(make_v_device_v9);
    const V12: Option<MakeVDevice<VDeviceProps8>> = Some(make_v_device_v12);
    macro_rules! build {
        ($module:ident, $i:ident $l:ident $c:ident $a:ident $m:ident $s:ident $r:ident, $p:expr, $($more:tt)*) => {
            table!($module, init: $i, listen: $l, connect: $c, accept: $a, reg_mr: $m, isend: $s, irecv: $r,
                get_properties: $p, $($more)*)
        };
    }
    [
        Table::V6(build!(v6, I6 L6 C6 A6 M6 S6 R6, Some(properties_v6),)),
        Table::V7(build!(v7, I6 L6 C7 A7 M6 S6 R6, None, get_device_mr: None, irecv_consumed: None)),
        Table::V8(build!(v8, I6 L6 C7 A7 M8 S6 R6, None, get_device_mr: None, irecv_consumed: None)),
        Table::V9(build!(v9, I6 L6 C7 A7 M8 S9 R9, None, get_device_mr: None, irecv_consumed: None, make_v_device: V9)),
        Table::V10(
            build!(v10, I10 L6 C10 A7 M8 S10 R10, None, get_device_mr: None, irecv_consumed: None, make_v_device: None),
        ),
        Table::V11(build!(v11, I11 L11 C11 A7 M8 S10 R10, None, get_device_mr: None, irecv_consumed: None,
            make_v_device: V9, finalize: Some(finalize), set_net_attr: None)),
        Table::V12(
            build!(v12, I11 L11 C11 A7 M8 S10 R10, Some(properties_v12), get_device_mr: None, irecv_consumed: None,
            make_v_device: V12, finalize: Some(finalize), set_net_attr: None),
        ),
    ]
}

fn start(table: Table) -> LoadedNet {
    Plugin::of_table(Path::new(""), table).init(11, Some(5)).unwrap()
}

#[test]
fn every_version_is_called_with_its_own_arguments() {
    for table in tables() {
        let version = table.version();
        let net = start(table);
        let expected = match version {
            6..=9 => "init true",
            10 => "init true true",
            _ => "init 11 class 5 true true",
        };
        assert_eq!(calls(), [expected]);
        assert_eq!(net.devices().unwrap(), 3);
        let mut handle = Handle::default();
        let listen = net.listen(2, &mut handle).unwrap();
        assert!(net.connect(1, &mut handle).unwrap().is_none());
        let send = net.connect(1, &mut handle).unwrap().expect("there at the second poll");
        let receive = net.accept(&listen).unwrap().expect("there at once");
        assert_eq!(calls(), ["listen 2", "connect 1 poll 1", "connect 1 poll 2"]);
        let data = NonNull::<u8>::dangling();
        let part = |bytes, tag| Part { data, bytes, tag, registration: Registration(pointer(0x50)) };
        // SAFETY: the tables above touch no data.
        unsafe {
            let registration = net.reg_mr(Comm::Send(&send), data, 4096).unwrap();
            let request = net.isend(&send, data, 100, 7, registration).unwrap().expect("a request");
            assert!(net.test(&request, None).unwrap());
            assert!(net.irecv(&receive, &[part(100, 7), part(200, 8)], true).unwrap().is_none());
            assert!(net.irecv(&receive, &[part(300, 9)], true).unwrap().is_none());
            net.dereg_mr(Comm::Send(&send), registration).unwrap();
        }
        // The hint is for single receives from v9 on.
        let hint = u32::from(version >= 9);
        let single = format!("irecv [300] tags [9] preset {hint}");
        let grouped = "irecv [100, 200] tags [7, 8] preset 0";
        let expected = ["regMr 20 4096 kind 1", "isend 100 tag 7", "test sizes false", grouped, &single, "deregMr 50"];
        assert_eq!(calls(), expected, "v{version}");
        net.close_recv(receive).unwrap();
        net.close_listen(listen).unwrap();
        let error = net.close_send(send).unwrap_err().to_string();
        assert!(error.contains("closeSend of plugin \"static\" returned ncclRemoteError"), "{error}");
        net.finalize().unwrap();
        assert_eq!(calls().concat(), if version >= 11 { "finalize 77" } else { "" });
    }
}

#[test]
fn old_versions_are_started_once_while_a_communicator_exists() {
    for table in tables() {
        let plugin = Plugin::of_table(Path::new(""), table);
        let [first, second] = [1, 2].map(|comm_id| plugin.init(comm_id, None).unwrap());
        assert_eq!(calls().len(), if table.version() >= 11 { 2 } else { 1 });
        drop((first, second));
        drop(plugin.init(3, None).unwrap());
        assert!(calls().iter().any(|call| call.starts_with("init")), "started again after the last one");
    }
}

#[test]
fn sizes_beyond_a_version_a_left_hint_and_a_missing_function_are_errors() {
    for table in tables() {
        let (version, net) = (table.version(), start(table));
        let mut handle = Handle::default();
        let listen = net.listen(0, &mut handle).unwrap();
        let receive = net.accept(&listen).unwrap().unwrap();
        let data = NonNull::<u8>::dangling();
        let part = Part { data, bytes: 2 << 30, tag: 0, registration: Registration(null_mut()) };
        // SAFETY: the tables above touch no data.
        unsafe {
            assert_eq!(net.reg_mr(Comm::Recv(&receive), data, 1 << 31).is_err(), version <= 7);
            assert_eq!(net.irecv(&receive, &[part], false).is_err(), version <= 8);
            let wrong = net.irecv(&receive, &[Part { bytes: 1, tag: 99, ..part }], true);
            assert_eq!(wrong.is_err(), version >= 9, "a hint left in place is noticed, and old versions get none");
            let error = net.iflush(&receive, &[Part { bytes: 1, ..part }]).unwrap_err().to_string();
            assert!(error.contains(&format!("NULL for iflush in its table for net v{version}")), "{error}");
        }
    }
}

#[test]
fn devices_are_fused_if_the_version_and_the_plugin_can() {
    for table in tables() {
        let (version, net) = (table.version(), start(table));
        calls();
        if version < 9 || version == 10 {
            let error = net.fuse(&[1, 0]).unwrap_err().to_string();
            assert!(error.contains("cannot fuse devices") && error.contains(&format!("v{version}")), "{error}");
            continue;
        }
        assert_eq!(net.fuse(&[1, 0]).unwrap(), 2, "v{version}");
        assert_eq!(calls(), ["makeVDevice [1, 0]"]);
        let limit = if version == 12 { 8 } else { 4 };
        assert!(net.fuse(&vec![1; limit]).is_ok());
        for wrong in [0, limit + 1] {
            let error = net.fuse(&vec![1; wrong]).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong} devices: net v{version} allows 1 to {limit}")), "{error}");
        }
        let error = net.fuse(&[0, 1]).unwrap_err().to_string();
        assert!(error.contains("breaks the API in makeVDevice"), "an index beyond all devices: {error}");
    }
}

#[test]
fn properties_of_all_versions_have_the_fields_of_the_newest() {
    let [six, .., twelve] = tables();
    let old = start(six).properties(0).unwrap();
    assert_eq!((old.name.as_str(), old.pci_path, old.speed_mbps, old.max_recvs), ("six", None, 100, 8));
    assert_eq!((old.reg_is_global, old.max_p2p_bytes, old.rail_id), (false, 1 << 30, -1));
    let new = start(twelve).properties(0).unwrap();
    assert_eq!((new.name.as_str(), new.pci_path.as_deref(), new.members), ("twelve", Some("/sys/pci"), vec![0, 4]));
    assert_eq!((new.force_flush, new.max_p2p_bytes, new.plane_id), (true, 1 << 40, 3));
}

unsafe extern "C" fn profiler_init(
    _context: *mut *mut c_void,
    _comm_id: u64,
    mask: *mut c_int,
    _name: *const c_char,
    _hosts: c_int,
    _ranks: c_int,
    _rank: c_int,
    _log: Option<NcclLogger>,
) -> NcclResult {
    // SAFETY: the host passes the pointer.
    unsafe { *mask = EventType::NET_PLUGIN.bit() };
    OK
}
unsafe extern "C" fn profiler_start(
    _context: *mut c_void,
    event: *mut *mut c_void,
    description: *mut profiler_v6::EventDescr,
) -> NcclResult {
    // SAFETY: the host passes both.
    let (kind, parent) = unsafe {
        *event = pointer((*description).kind.0 as usize);
        ((*description).kind, (*description).parent_obj)
    };
    note(format!("profiler start {:x} under {:x}", kind.0, parent.addr()))
}
unsafe extern "C" fn profiler_stop(event: *mut c_void) -> NcclResult {
    note(format!("profiler stop {:x}", event.addr()))
}
unsafe extern "C" fn profiler_record(_: *mut c_void, _: EventState, _: *mut parts::StateArgsV4) -> NcclResult {
    OK
}

#[test]
fn events_of_plugins_reach_the_profiler_from_v10_on() {
    static PROFILER: profiler_v6::Profiler = profiler_v6::Profiler {
        name: c"profiler".as_ptr(),
        init: Some(profiler_init),
        start_event: Some(profiler_start),
        stop_event: Some(profiler_stop),
        record_event_state: Some(profiler_record),
        finalize: Some(close),
    };
    // SAFETY: the table is static, and of this version.
    let loaded = unsafe { ProfilerPlugin::at(Path::new(""), 6, std::ptr::from_ref(&PROFILER).cast()) };
    let loaded = loaded.unwrap().unwrap();
    let profiler = loaded.init(profiler::CommunicatorInfo::default()).unwrap();
    for table in tables() {
        let net = Plugin::of_table(Path::new(""), table).init_with(1, Some(5), Some(&loaded)).unwrap();
        let mut handle = Handle::default();
        let listen = net.listen(0, &mut handle).unwrap();
        net.connect(0, &mut handle).unwrap();
        let send = net.connect(0, &mut handle).unwrap().unwrap();
        let receive = net.accept(&listen).unwrap().unwrap();
        let (call, direction) = (profiler.call(), profiler::Direction::Send);
        let shape = profiler::OpShape { channel: 0, peer: 1, steps: 2, chunk_bytes: 8, direction, in_flight: 2 };
        let op = call.proxy_op(call.group().parent(), shape);
        op.start_step(0);
        op.start_step(1);
        calls();
        let (data, registration) = (NonNull::<u8>::dangling(), Registration(pointer(0x50)));
        let part = Part { data, bytes: 8, tag: 0, registration };
        // SAFETY: the tables above touch no data, and the steps stay in place.
        unsafe {
            let request = net.isend_profiled(&send, data, 8, 0, registration, op.handle(0)).unwrap().unwrap();
            assert!(net.test(&request, None).unwrap());
            net.irecv_profiled(&receive, &[part, part], false, &[op.handle(1), op.handle(0)]).unwrap();
        }
        let (start, stop) = ("profiler start 80 under 10", "profiler stop 80");
        let (sent, received) = (["isend 8 tag 0", "test sizes false"], "irecv [8, 8] tags [0, 0] preset 0");
        if table.version() >= 10 {
            assert_eq!(calls(), [start, sent[0], stop, sent[1], start, stop, start, stop, received]);
        } else {
            assert_eq!(calls(), [sent[0], sent[1], received]);
        }
    }
}
