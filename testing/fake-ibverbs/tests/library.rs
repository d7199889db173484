//! The library as a whole: its symbols, its machine, and its failures on demand.

mod common;

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use common::{ACCESS, End, Machine, TWO, Wish, raw};
use railweave_fabric_verbs::sys::{self, Functions, LibraryError};
use railweave_fake_ibverbs::{FakeVerbs, LoadError, build, build_without, link};

unsafe extern "C" {
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

fn find(library: &Path, name: &str, version: &CStr) -> *mut c_void {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).expect("no zero byte");
    let name = CString::new(name).expect("no zero byte");
    // SAFETY: the library is the fake libibverbs; the strings end with a zero byte.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        dlvsym(handle, name.as_ptr(), version.as_ptr())
    }
}

fn has(library: &Path, name: &str, version: &CStr) -> bool {
    !find(library, name, version).is_null()
}

#[test]
fn every_function_that_nccl_looks_for_has_the_version_that_nccl_looks_for() {
    let library = build();
    for name in [
        "ibv_get_device_list",
        "ibv_free_device_list",
        "ibv_get_device_name",
        "ibv_open_device",
        "ibv_close_device",
        "ibv_get_async_event",
        "ibv_ack_async_event",
        "ibv_query_device",
        "ibv_query_port",
        "ibv_query_gid",
        "ibv_query_qp",
        "ibv_query_pkey",
        "ibv_alloc_pd",
        "ibv_dealloc_pd",
        "ibv_reg_mr",
        "ibv_dereg_mr",
        "ibv_create_cq",
        "ibv_destroy_cq",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_destroy_qp",
        "ibv_fork_init",
        "ibv_event_type_str",
    ] {
        assert!(has(&library, name, c"IBVERBS_1.1"), "{name}");
    }
    assert!(has(&library, "ibv_reg_mr_iova2", c"IBVERBS_1.8"));
    assert!(has(&library, "ibv_query_ece", c"IBVERBS_1.10") && has(&library, "ibv_set_ece", c"IBVERBS_1.10"));
    assert!(has(&library, "ibv_reg_dmabuf_mr", c"IBVERBS_1.12"));
    assert!(has(&library, "ibv_query_port_speed", c"IBVERBS_1.16"));
    assert!(!has(&library, "ibv_reg_mr_iova2", c"IBVERBS_1.1"), "a version that this function does not have");
    assert!(!has(&library, "ibv_get_device_list", c"IBVERBS_1.0"));
}

#[test]
fn functions_that_are_left_out_are_absent() {
    let library = build_without(&["ibv_reg_mr_iova2", "ibv_query_port_speed"]);
    let functions = Functions::load(&[library.to_str().expect("UTF-8")]).expect("these functions are optional");
    assert!(functions.reg_mr_iova2.is_none() && functions.query_port_speed.is_none());
    assert!(functions.reg_dmabuf_mr.is_some());
    let library = build_without(&["ibv_create_srq"]);
    let error = Functions::load(&[library.to_str().expect("UTF-8")]).expect_err("this function is required");
    assert!(matches!(error, LibraryError::MissingSymbol { symbol: "ibv_create_srq", .. }), "{error}");
    for name in ["ibv_teleport", "fake_ibverbs"] {
        let error = link(&[name]).expect_err("only functions of libibverbs and libmlx5 can be left out").to_string();
        assert!(error.starts_with(name) && error.contains("MLX5"), "{error}");
    }
}

#[test]
fn threads_that_link_at_once_all_get_a_complete_library_and_leave_no_other_file() {
    // No other test links this one.
    let absent = ["ibv_query_pkey"];
    let _ = std::fs::remove_file(build_without(&absent));
    let linked: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| link(&absent).map_err(|error| error.to_string()))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let library = linked[0].clone().expect("linked");
    assert!(linked.iter().all(|path| path.as_ref() == Ok(&library)), "{linked:?}");
    FakeVerbs::load(&library).expect("the library loads");
    let process = format!("libibverbs-fake-no-ibv_query_pkey.{}-", std::process::id());
    let files = std::fs::read_dir(library.parent().expect("a folder")).expect("it is readable").flatten();
    let left: Vec<_> = files.filter(|file| file.file_name().to_string_lossy().starts_with(&process)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn another_library_is_not_mistaken_for_the_fake() {
    let error = FakeVerbs::load(Path::new("/nowhere/libibverbs.so")).expect_err("no file");
    assert!(matches!(error, LoadError::NotLoaded(_)), "{error}");
    let error = FakeVerbs::load(Path::new("libm.so.6")).expect_err("another library");
    assert!(matches!(error, LoadError::NotFake(_)), "{error}");
}

#[test]
fn a_device_reports_its_description() {
    let machine = Machine::new(
        "[[device]]\nname = 'mlx5_3'\nguid = 0x0102030405060708\nsystem_guid = 0x99\nmax_qp_wr = 128\n\
         max_srq = 0\nvendor_id = 0x15b3\n\
             [[device.port]]\nlink_layer = 'infiniband'\nlid = 3\nwidth = 2\nspeed = 'ndr'\n\
         port_speed = 2000\nmtu = 2048\nmax_message = 0x1000\ngrh_required = true\npkeys = [0xffff, 0x8001]\n\
         [[device.port]]\nstate = 'down'\nport_speed = 0\ngid.3 = ['10.0.0.9', 'roce2', 4]\n",
    );
    let functions = &machine.functions;
    let context = machine.open(0);
    // SAFETY: the context is open, and there are places for all results.
    unsafe {
        let device = &*(*context).device;
        let name = CStr::from_ptr(device.name.as_ptr());
        assert_eq!((name, CStr::from_ptr(device.ibdev_path.as_ptr())), (c"mlx5_3", c"/sys/class/infiniband/mlx5_3"));
        let mut attributes = std::mem::zeroed();
        assert_eq!((functions.query_device)(context, &raw mut attributes), 0);
        assert_eq!(
            (attributes.node_guid, attributes.sys_image_guid),
            (0x0102_0304_0506_0708_u64.to_be(), 0x99_u64.to_be())
        );
        assert_eq!((attributes.max_qp_wr, attributes.max_srq, attributes.max_srq_wr), (128, 0, 0));
        assert_eq!((attributes.phys_port_cnt, attributes.vendor_id), (2, 0x15b3));

        // The call that the header's inline function makes.
        let verbs = context.byte_sub(std::mem::offset_of!(sys::VerbsContext, context)).cast::<sys::VerbsContext>();
        assert_eq!(((*context).abi_compat.addr(), (*verbs).size), (usize::MAX, size_of::<sys::VerbsContext>()));
        let in_full = (*verbs).query_port.expect("it is there");
        let mut port = sys::PortAttributes::default();
        assert_eq!(in_full(context, 1, &raw mut port, size_of::<sys::PortAttributes>()), 0);
        assert_eq!((port.state, port.link_layer, port.lid), (sys::PORT_ACTIVE, 1, 3));
        assert_eq!((port.active_width, port.active_speed, port.active_mtu, port.max_msg_sz), (16, 128, 4, 0x1000));
        assert_eq!((port.flags, port.pkey_tbl_len, port.gid_tbl_len), (sys::QPF_GRH_REQUIRED, 2, 16));
        // The library's function writes the older structure only.
        let mut old = sys::PortAttributes { port_cap_flags2: 0xabcd, ..sys::PortAttributes::default() };
        assert_eq!((functions.query_port)(context, 2, &raw mut old), 0);
        assert_eq!((old.state, old.link_layer, old.port_cap_flags2), (sys::PORT_DOWN, 2, 0xabcd));
        for number in [0, 3] {
            assert_eq!((functions.query_port)(context, number, &raw mut old), libc::EINVAL, "port {number}");
        }

        let speed_of = functions.query_port_speed.expect("it is there");
        let mut speed = 0;
        assert_eq!((speed_of(context, 1, &raw mut speed), speed), (0, 2000));
        assert_eq!(speed_of(context, 2, &raw mut speed), libc::EOPNOTSUPP);

        let entry_of = functions.query_gid_ex.expect("it is there");
        let mut entry = sys::GidEntry::default();
        let room = size_of::<sys::GidEntry>();
        assert_eq!(entry_of(context, 2, 3, &raw mut entry, 0, room), 0);
        assert_eq!((entry.gid_type, entry.ndev_ifindex, entry.port_num), (sys::GID_TYPE_ROCE_V2, 4, 2));
        assert_eq!(entry_of(context, 2, 2, &raw mut entry, 0, room), libc::ENODATA);
        assert_eq!(entry_of(context, 2, 16, &raw mut entry, 0, room), libc::EINVAL);
        let mut gid = sys::Gid([1; 16]);
        assert_eq!(((functions.query_gid)(context, 2, 2, &raw mut gid), gid), (0, sys::Gid::default()));
        assert_eq!((functions.query_gid)(context, 2, -1, &raw mut gid), -1);

        let pd = (functions.alloc_pd)(context);
        let mut wish: sys::SrqInitAttributes = std::mem::zeroed();
        wish.attr.max_wr = 1;
        assert!((functions.create_srq)(pd, &raw mut wish).is_null(), "the device has none");
        assert_eq!(((functions.dealloc_pd)(pd), (functions.close_device)(context)), (0, 0));
    }
    machine.assert_closed();
}

#[test]
fn functions_that_only_nccl_calls_work_too() {
    type GetName = unsafe extern "C" fn(*mut sys::Device) -> *const c_char;
    type QueryPkey = unsafe extern "C" fn(*mut sys::Context, u8, c_int, *mut u16) -> c_int;
    type QueryQp =
        unsafe extern "C" fn(*mut sys::Qp, *mut sys::QpAttributes, c_int, *mut sys::QpInitAttributes) -> c_int;
    type Text = unsafe extern "C" fn(c_int) -> *const c_char;

    let machine = Machine::new("[[device]]\nname = 'sim0'\n[[device.port]]\npkeys = [0xffff, 0x8001]\n");
    let end = End::new(&machine, Wish::default());
    end.connect(&end);
    let library = build();
    let find = |name| find(&library, name, c"IBVERBS_1.1");
    // SAFETY: the functions of these names have these types; the objects passed are open, and there are places for the
    // results.
    unsafe {
        let name_of = std::mem::transmute::<*mut c_void, GetName>(find("ibv_get_device_name"));
        assert_eq!(CStr::from_ptr(name_of((*end.context).device)), c"sim0");
        let key_of = std::mem::transmute::<*mut c_void, QueryPkey>(find("ibv_query_pkey"));
        let mut key = 0;
        assert_eq!((key_of(end.context, 1, 1, &raw mut key), key), (0, 0x8001_u16.to_be()));
        assert_eq!(key_of(end.context, 1, 2, &raw mut key), -1);
        let query = std::mem::transmute::<*mut c_void, QueryQp>(find("ibv_query_qp"));
        let (mut attributes, mut init) = (sys::QpAttributes::default(), std::mem::zeroed::<sys::QpInitAttributes>());
        assert_eq!(query(end.qp, &raw mut attributes, 0, &raw mut init), 0);
        assert_eq!((attributes.qp_state, attributes.timeout, attributes.cap.max_send_wr), (sys::QPS_RTS, 14, 16));
        assert_eq!((init.send_cq, init.qp_type), (end.send_cq, sys::QPT_RC));
        let text = std::mem::transmute::<*mut c_void, Text>(find("ibv_event_type_str"));
        assert_eq!(CStr::from_ptr(text(sys::EVENT_PORT_ERR)), c"port error");
        assert_eq!(CStr::from_ptr(text(-7)), c"unknown");
    }
}

#[test]
fn limits_are_enforced() {
    let machine = Machine::new(
        "[[device]]\nname = 'sim0'\nmax_pd = 1\nmax_cq = 2\nmax_cqe = 64\nmax_mr = 1\nmax_qp = 1\nmax_qp_wr = 16\n\
         max_inline = 64\nmax_srq = 1\nmax_srq_wr = 16\nmax_sge = 2\n[[device.port]]\n",
    );
    let end = End::new(&machine, Wish { shared: true, ..Wish::default() });
    let functions = &machine.functions;
    let mut memory = vec![0; 8];
    let none = std::ptr::null_mut();
    // SAFETY: the objects passed are open; every call is refused.
    unsafe {
        assert!((functions.alloc_pd)(end.context).is_null());
        assert!((functions.create_cq)(end.context, 1, none, none, 0).is_null());
        assert!((functions.reg_mr)(end.pd, raw(&mut memory), 8, ACCESS).is_null());
        let mut wish: sys::SrqInitAttributes = std::mem::zeroed();
        wish.attr.max_wr = 1;
        assert!((functions.create_srq)(end.pd, &raw mut wish).is_null());
        let mut wish: sys::QpInitAttributes = std::mem::zeroed();
        (wish.send_cq, wish.recv_cq, wish.qp_type) = (end.send_cq, end.recv_cq, sys::QPT_RC);
        assert!((functions.create_qp)(end.pd, &raw mut wish).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        wish.cap.max_inline_data = 65;
        assert!((functions.create_qp)(end.pd, &raw mut wish).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
        assert!(machine.fake.complaint().contains("max_inline_data 65"), "{}", machine.fake.complaint());
    }
}

#[test]
fn a_file_describes_the_machine_too() {
    let machine = Machine::new(TWO);
    let file = std::env::temp_dir().join(format!("railweave-fake-ibverbs-{}", std::process::id()));
    machine.fake.describe(None).expect("it takes no text");
    let count = || {
        let mut count = -1;
        // SAFETY: a place for the number; the list is freed.
        unsafe {
            let list = (machine.functions.get_device_list)(&raw mut count);
            if list.is_null() {
                return -1;
            }
            (machine.functions.free_device_list)(list);
        }
        count
    };
    assert_eq!(count(), 1, "one device without a file");
    std::fs::write(
        &file,
        "[[device]]\nname = 'a'\n[[device]]\nname = 'b'\n\
        [[device]]\nname = 'c'\n",
    )
    .expect("it can be written");
    // SAFETY: the tests of this program take turns at the machine, and nothing else here reads the environment.
    unsafe { std::env::set_var("RAILWEAVE_TEST_MACHINE", &file) };
    assert_eq!(count(), 3);
    std::fs::write(&file, "").expect("it can be written");
    assert_eq!(count(), 0, "read again: a machine without devices");
    std::fs::write(&file, "[[device]]\nname = 'a'\nlid = 7\n").expect("it can be written");
    assert_eq!(count(), -1);
    assert!(machine.fake.complaint().contains("line 3, `lid = 7`"), "{}", machine.fake.complaint());
    std::fs::remove_file(&file).expect("it is there");
    assert_eq!(count(), -1);
    assert!(machine.fake.complaint().contains("cannot be read"), "{}", machine.fake.complaint());
    // SAFETY: the same as for `set_var` above.
    unsafe { std::env::remove_var("RAILWEAVE_TEST_MACHINE") };
    assert!(machine.fake.describe(Some("[[device.port]]")).expect_err("a port without a device").contains("line 1"));
    machine.assert_closed();
}

#[test]
fn a_wrong_profile_of_the_environment_is_named_with_its_variable() {
    const VARIABLE: &str = "RAILWEAVE_TEST_PROFILE";
    let machine = Machine::new(TWO);
    let before = std::env::var_os(VARIABLE);
    // SAFETY: the tests of this program take turns at the machine, and nothing else here reads the environment.
    let set = |name: Option<&OsStr>| unsafe {
        match name {
            Some(name) => std::env::set_var(VARIABLE, name),
            None => std::env::remove_var(VARIABLE),
        }
    };
    for (name, part) in [(&b"\xff"[..], "no profile \u{fffd}"), (b"abacus", "no profile abacus; one of plain")] {
        set(Some(OsStr::from_bytes(name)));
        let described = machine.fake.describe(Some(TWO));
        // SAFETY: a list that is not made needs no place for the number.
        let list = unsafe { (machine.functions.get_device_list)(std::ptr::null_mut()) };
        set(before.as_deref());
        let error = described.expect_err(part);
        assert!(error.starts_with(VARIABLE) && error.contains(part), "{error}");
        assert_eq!((list.is_null(), machine.fake.complaint()), (true, error));
    }
}

#[test]
fn a_complaint_about_memory_names_the_function_that_was_called() {
    type Register = unsafe extern "C" fn(*mut sys::Pd, u64, usize, u64, c_int, c_int, c_int) -> *mut sys::Mr;
    let machine = Machine::new(TWO);
    let end = End::new(&machine, Wish::default());
    let register = find(&build(), "mlx5dv_reg_dmabuf_mr", c"MLX5_1.25");
    assert!(!register.is_null());
    // SAFETY: mlx5dv_reg_dmabuf_mr(3): the function has this type; it refuses the flags before it looks at the rest.
    unsafe {
        let register = std::mem::transmute::<*mut c_void, Register>(register);
        assert!(register(end.pd, 0, 8, 0, -1, 1 << 9, 0).is_null());
        let complaint = machine.fake.complaint();
        assert_eq!(complaint, "mlx5dv_reg_dmabuf_mr has no access flags 0x200");
        let mut memory = [0; 8];
        assert!((machine.functions.reg_mr)(end.pd, raw(&mut memory), 8, 1 << 9).is_null());
        let complaint = machine.fake.complaint();
        assert!(complaint.starts_with("ibv_reg_mr has no access flags 0x200; optional ones"), "{complaint}");
    }
}

/// The first function that failed, and its error.
type Failed = (&'static str, c_int);

/// The steps that undo a run of `live`, whether it succeeds or fails.
struct Undo<'all>(Vec<Box<dyn FnOnce() -> c_int + 'all>>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        while let Some(step) = self.0.pop() {
            step();
        }
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn status(name: &'static str, status: c_int) -> Result<(), Failed> {
    match status {
        0 => Ok(()),
        -1 => Err((name, errno())),
        status => Err((name, status.abs())),
    }
}

fn made<T>(name: &'static str, pointer: *mut T) -> Result<*mut T, Failed> {
    if pointer.is_null() { Err((name, errno())) } else { Ok(pointer) }
}

/// Creates, uses and destroys one object of each kind; stops at the first failure.
fn live(machine: &Machine) -> Result<(), Failed> {
    let functions = &machine.functions;
    let mut undo = Undo(Vec::new());
    let mut memory = vec![0_u8; 64];
    // SAFETY: every object passed was made before; `undo` destroys each once, the last one first.
    unsafe {
        status("fork_init", (functions.fork_init)())?;
        let list = made("get_device_list", (functions.get_device_list)(std::ptr::null_mut()))?;
        let opened = made("open_device", (functions.open_device)(*list));
        (functions.free_device_list)(list);
        let context = opened?;
        undo.0.push(Box::new(move || (functions.close_device)(context)));
        let mut attributes = std::mem::zeroed();
        status("query_device", (functions.query_device)(context, &raw mut attributes))?;
        let mut port = sys::PortAttributes::default();
        status("query_port", (functions.query_port)(context, 1, &raw mut port))?;
        let mut speed = 0;
        status("query_port_speed", functions.query_port_speed.expect("there")(context, 1, &raw mut speed))?;
        let mut gid = sys::Gid::default();
        status("query_gid", (functions.query_gid)(context, 1, 1, &raw mut gid))?;
        let mut entry = sys::GidEntry::default();
        let entry_of = functions.query_gid_ex.expect("there");
        status("query_gid_ex", entry_of(context, 1, 1, &raw mut entry, 0, size_of::<sys::GidEntry>()))?;
        let pd = made("alloc_pd", (functions.alloc_pd)(context))?;
        undo.0.push(Box::new(move || (functions.dealloc_pd)(pd)));
        register_in_every_way(functions, pd, raw(&mut memory), &mut undo)?;
        live_with_queues(functions, context, pd, gid, &mut undo)
    }
}

/// # Safety
/// The domain must exist, and the memory must have 64 bytes, until `undo` is dropped.
unsafe fn register_in_every_way<'all>(
    functions: &'all Functions,
    pd: *mut sys::Pd,
    memory: *mut c_void,
    undo: &mut Undo<'all>,
) -> Result<(), Failed> {
    // SAFETY: the region was registered just before, and is deregistered once.
    let mut keep = |mr: *mut sys::Mr| undo.0.push(Box::new(move || unsafe { (functions.dereg_mr)(mr) }));
    // SAFETY: the caller vouches for the domain and the memory; the descriptor is closed once.
    unsafe {
        keep(made("reg_mr", (functions.reg_mr)(pd, memory, 64, ACCESS))?);
        let mr = functions.reg_mr_iova2.expect("there")(pd, memory, 64, 0, ACCESS as u32);
        keep(made("reg_mr_iova2", mr)?);
        let descriptor = libc::memfd_create(c"buffer".as_ptr(), libc::MFD_CLOEXEC);
        libc::ftruncate(descriptor, 64);
        let mr = functions.reg_dmabuf_mr.expect("there")(pd, 0, 64, 0, descriptor, ACCESS);
        let mr = made("reg_dmabuf_mr", mr);
        libc::close(descriptor);
        keep(mr?);
    }
    Ok(())
}

/// # Safety
/// The device and the domain must be open until `undo` is dropped.
unsafe fn live_with_queues<'all>(
    functions: &'all Functions,
    context: *mut sys::Context,
    pd: *mut sys::Pd,
    gid: sys::Gid,
    undo: &mut Undo<'all>,
) -> Result<(), Failed> {
    let none = std::ptr::null_mut();
    // SAFETY: the caller vouches for the device and the domain; all other objects are made here, and `undo` destroys
    // each once.
    unsafe {
        let cq = made("create_cq", (functions.create_cq)(context, 16, none, none, 0))?;
        undo.0.push(Box::new(move || (functions.destroy_cq)(cq)));
        let mut wish: sys::SrqInitAttributes = std::mem::zeroed();
        wish.attr.max_wr = 4;
        let srq = made("create_srq", (functions.create_srq)(pd, &raw mut wish))?;
        undo.0.push(Box::new(move || (functions.destroy_srq)(srq)));
        let mut wish: sys::QpInitAttributes = std::mem::zeroed();
        (wish.send_cq, wish.recv_cq, wish.qp_type) = (cq, cq, sys::QPT_RC);
        wish.cap = sys::QpCapabilities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, ..wish.cap };
        let qp = made("create_qp", (functions.create_qp)(pd, &raw mut wish))?;
        undo.0.push(Box::new(move || (functions.destroy_qp)(qp)));
        let mut ece = sys::Ece::default();
        status("query_ece", functions.query_ece.expect("there")(qp, &raw mut ece))?;
        status("set_ece", functions.set_ece.expect("there")(qp, &raw mut ece))?;
        let mut step = sys::QpAttributes {
            qp_state: sys::QPS_INIT,
            path_mtu: 3,
            dest_qp_num: (*qp).qp_num,
            port_num: 1,
            ..sys::QpAttributes::default()
        };
        step.ah_attr.is_global = 1;
        step.ah_attr.port_num = 1;
        step.ah_attr.grh = sys::GlobalRoute { dgid: gid, sgid_index: 1, hop_limit: 1, ..step.ah_attr.grh };
        for (name, state, mask) in [
            ("modify_qp/INIT", sys::QPS_INIT, common::TO_INIT),
            ("modify_qp/RTR", sys::QPS_RTR, common::TO_RTR),
            ("modify_qp/RTS", sys::QPS_RTS, common::TO_RTS),
        ] {
            step.qp_state = state;
            status(name, (functions.modify_qp)(qp, &raw mut step, mask))?;
        }
        let ops = &(*context).ops;
        let mut receive =
            sys::RecvWr { wr_id: 0, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };
        let mut bad = std::ptr::null_mut();
        status("post_recv", ops.post_recv.expect("there")(qp, &raw mut receive, &raw mut bad))?;
        status("post_srq_recv", ops.post_srq_recv.expect("there")(srq, &raw mut receive, &raw mut bad))?;
        let mut send: sys::SendWr = std::mem::zeroed();
        let mut bad = std::ptr::null_mut();
        status("post_send", ops.post_send.expect("there")(qp, &raw mut send, &raw mut bad))?;
        let mut done = sys::Wc::default();
        status("poll_cq", ops.poll_cq.expect("there")(cq, 1, &raw mut done).min(0))?;
    }
    Ok(())
}

#[test]
fn every_step_fails_on_demand() {
    let with_ece = "[[device]]\nname = 'sim0'\nece = [0x15b3, 1]\n[[device.port]]\nport_speed = 1000\n";
    let machine = Machine::new(with_ece);
    assert_eq!(live(&machine), Ok(()));
    machine.assert_closed();
    for name in [
        "fork_init",
        "get_device_list",
        "open_device",
        "query_device",
        "query_port",
        "query_port_speed",
        "query_gid",
        "query_gid_ex",
        "alloc_pd",
        "reg_mr",
        "reg_mr_iova2",
        "reg_dmabuf_mr",
        "create_cq",
        "create_srq",
        "create_qp",
        "query_ece",
        "set_ece",
        "modify_qp/INIT",
        "modify_qp/RTR",
        "modify_qp/RTS",
        "post_recv",
        "post_srq_recv",
        "post_send",
        "poll_cq",
    ] {
        // fork_init comes before the list that reads the description, so it fails in the next run.
        let text = format!("faults = ['{name}:1:EIO']\n{with_ece}");
        machine.fake.describe(Some(&text)).expect("well-formed");
        let result = live(&machine);
        if name == "fork_init" {
            assert_eq!(result, Ok(()));
            assert_eq!(live(&machine), Err((name, libc::EIO)));
        } else {
            assert_eq!(result, Err((name, libc::EIO)), "{name}");
        }
        machine.assert_closed();
        assert_eq!(live(&machine), Ok(()), "{name}: only the first call fails");
    }
}

#[test]
fn destroying_fails_on_demand_too_and_then_succeeds() {
    let machine = Machine::new(TWO);
    for name in ["destroy_qp", "destroy_srq", "destroy_cq", "dereg_mr", "dealloc_pd", "close_device"] {
        machine.fake.describe(Some(&format!("faults = ['{name}:1:EIO']\n{TWO}"))).expect("well-formed");
        let context = machine.open(0);
        let functions = &machine.functions;
        let none = std::ptr::null_mut();
        let mut memory = vec![0_u8; 8];
        // SAFETY: each object is made once, and destroyed again only after a failure.
        unsafe {
            let pd = (functions.alloc_pd)(context);
            let mr = (functions.reg_mr)(pd, raw(&mut memory), 8, ACCESS);
            let cq = (functions.create_cq)(context, 1, none, none, 0);
            let mut wish: sys::SrqInitAttributes = std::mem::zeroed();
            wish.attr.max_wr = 1;
            let srq = (functions.create_srq)(pd, &raw mut wish);
            let mut wish: sys::QpInitAttributes = std::mem::zeroed();
            (wish.send_cq, wish.recv_cq, wish.qp_type) = (cq, cq, sys::QPT_RC);
            let qp = (functions.create_qp)(pd, &raw mut wish);
            let steps: [(&str, &dyn Fn() -> c_int); 6] = [
                ("destroy_qp", &|| (functions.destroy_qp)(qp)),
                ("destroy_srq", &|| (functions.destroy_srq)(srq)),
                ("destroy_cq", &|| (functions.destroy_cq)(cq)),
                ("dereg_mr", &|| (functions.dereg_mr)(mr)),
                ("dealloc_pd", &|| (functions.dealloc_pd)(pd)),
                ("close_device", &|| (functions.close_device)(context)),
            ];
            for (step, destroy) in steps {
                if step == name {
                    assert_eq!(destroy(), libc::EIO, "{name}");
                }
                assert_eq!(destroy(), 0, "{step}");
            }
        }
        machine.assert_closed();
    }
}
