//! Calls that NCCL must not make: an error code and a line, never a crash. The loader's types do not allow them, so
//! these tests call the table itself.

mod common;

use common::{Pair, TWO_RAILS, alone, library, noise, start, warnings};
use railweave_abi::NcclResult;
use railweave_abi::net::{v6, v12};
use railweave_nccl_host::logger;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;

/// Returns the plugin's table at this symbol; the library stays loaded.
fn table<T>(symbol: &CStr) -> &'static T {
    let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: both texts end with a NUL, and the plugin's symbol is a table of the type that its name says.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "the library loads");
        libc::dlsym(library, symbol.as_ptr()).cast::<T>().as_ref().expect("the table is there")
    }
}

fn v12() -> &'static v12::Net {
    table(c"ncclNetPlugin_v12")
}

/// Checks that the call fails with one more warning, which names the call and has these words.
fn refused(call: &str, words: &str, run: impl FnOnce() -> NcclResult) {
    let before = warnings().len();
    assert_eq!(run(), NcclResult::INTERNAL_ERROR, "{call}");
    let said = warnings().split_off(before);
    assert!(said.len() == 1 && said[0].contains(&format!(": {call}: ")) && said[0].contains(words), "{call}: {said:?}");
}

#[test]
fn null_where_an_object_belongs_is_refused() {
    alone(&[TWO_RAILS], || {
        let (_plugin, _net) = start();
        let net = v12();
        let (mut done, mut out) = (0, null_mut());
        let mut bytes = [0_u8; 128];
        let handle = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: every call is one that the plugin must survive: NULL, and pointers that are valid for it.
        unsafe {
            refused("test", "NULL for the request", || net.test.unwrap()(null_mut(), &raw mut done, null_mut()));
            refused("listen", "context", || net.listen.unwrap()(null_mut(), 0, handle, &raw mut out));
            refused("connect", "context", || net.connect.unwrap()(null_mut(), 0, handle, &raw mut out, null_mut()));
            refused("accept", "NULL for the listener", || net.accept.unwrap()(null_mut(), &raw mut out, null_mut()));
            refused("finalize", "context", || net.finalize.unwrap()(null_mut()));
            refused("devices", "count", || net.devices.unwrap()(null_mut()));
            refused("getProperties", "properties", || net.get_properties.unwrap()(0, null_mut()));
            refused("regMr", "not an open connection", || {
                net.reg_mr.unwrap()(null_mut(), handle, 128, 1, &raw mut out)
            });
            let isend = net.isend.unwrap();
            refused("isend", "not an open connection", || {
                isend(null_mut(), handle, 1, 0, null_mut(), null_mut(), &raw mut out)
            });
            let init = net.init.unwrap();
            refused("init", "context", || init(null_mut(), 1, null_mut(), Some(logger::function()), None));
            // NULL may be closed; NCCL does so when it gives up half-way.
            assert_eq!(net.close_send.unwrap()(null_mut()), NcclResult::SUCCESS);
            assert_eq!(net.close_recv.unwrap()(null_mut()), NcclResult::SUCCESS);
            assert_eq!(net.close_listen.unwrap()(null_mut()), NcclResult::SUCCESS);
            assert_eq!(net.dereg_mr.unwrap()(null_mut(), null_mut()), NcclResult::SUCCESS);
        }
    });
}

#[test]
fn null_for_results_and_registrations_is_refused() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100)), pair.incoming(100));
        let recv = pair.irecv(&[to.part(7)]);
        let (send, data) = (pair.send.pointer(), from.start().as_ptr().cast::<c_void>());
        let table = v12();
        let mut out = null_mut();
        // SAFETY: as above.
        unsafe {
            refused("test", "done", || table.test.unwrap()(recv.pointer(), null_mut(), null_mut()));
            refused("regMr", "memory handle", || table.reg_mr.unwrap()(send, data, 100, 1, null_mut()));
            refused("regMr", "memory type 7", || table.reg_mr.unwrap()(send, data, 100, 7, &raw mut out));
            let isend = table.isend.unwrap();
            refused("isend", "the request", || isend(send, data, 1, 7, null_mut(), null_mut(), null_mut()));
            refused("isend", "memory handle", || isend(send, data, 1, 7, null_mut(), null_mut(), &raw mut out));
        }
        let send = pair.isend(&from, 100, 7);
        pair.finish(&[send], &[recv]);
        to.assert_holds(&noise(1, 100));
    });
}

#[test]
fn receives_of_none_or_nine_buffers_are_refused_and_eight_are_not() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let to = pair.incoming(64);
        let mut data = [to.start().as_ptr().cast::<c_void>(); 9];
        let (mut sizes, mut tags, mut mrs) = ([64_usize; 9], [0; 9], [to.registration().0; 9]);
        let irecv = v12().irecv.unwrap();
        let mut out = null_mut();
        let mut call = |count: c_int| {
            let (data, sizes, tags, mrs) = (data.as_mut_ptr(), sizes.as_mut_ptr(), tags.as_mut_ptr(), mrs.as_mut_ptr());
            // SAFETY: every array has nine entries, of registered memory that stays.
            let code = unsafe { irecv(pair.recv.pointer(), count, data, sizes, tags, mrs, null_mut(), &raw mut out) };
            (code, out)
        };
        for count in [9, 0, -1, c_int::MAX, c_int::MIN] {
            refused("irecv", &format!("{count} buffers; allowed: 1 to 8"), || call(count).0);
        }
        let (code, request) = call(8);
        assert!(code == NcclResult::SUCCESS && !request.is_null());
    });
}

#[test]
fn the_wrong_end_of_a_connection_is_refused() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100)), pair.incoming(100));
        let table = v12();
        let (mut data, mut size, mut int, mut tag) = (to.start().as_ptr().cast::<c_void>(), 100_usize, 100, 7);
        let (mut mr, mut out) = (to.registration().0, null_mut());
        let (data, size, int) = (&raw mut data, &raw mut size, &raw mut int);
        let (tag, mr, out) = (&raw mut tag, &raw mut mr, &raw mut out);
        // SAFETY: every pointer is valid for the one buffer of these calls.
        unsafe {
            let (send, recv) = (pair.send.pointer(), pair.recv.pointer());
            let isend = table.isend.unwrap();
            refused("isend", "receives", || isend(recv, *data, 100, 7, *mr, null_mut(), out));
            refused("irecv", "sends", || table.irecv.unwrap()(send, 1, data, size, tag, mr, null_mut(), out));
            refused("iflush", "sends", || table.iflush.unwrap()(send, 1, data, int, mr, out));
            // A flush of host memory has nothing to wait for.
            assert_eq!((table.iflush.unwrap()(recv, 1, data, int, mr, out), *out), (NcclResult::SUCCESS, null_mut()));
        }
        assert_eq!(pair.transfer(&from, 100, &to), (100, 100));
    });
}

#[test]
fn a_request_that_is_over_is_refused() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(&noise(1, 100)), pair.incoming(100));
        let recv = pair.irecv(&[to.part(7)]);
        let send = pair.isend(&from, 100, 7);
        let (again_send, again_recv) = (send.pointer(), recv.pointer());
        pair.finish(&[send], &[recv]);
        let (test, mut done) = (v12().test.unwrap(), 0);
        // SAFETY: both requests belong to an open connection.
        unsafe {
            refused("test", "not in progress", || test(again_send, &raw mut done, null_mut()));
            refused("test", "not in progress", || test(again_recv, &raw mut done, null_mut()));
        }
        pair.exchange(1, 1000);
    });
}

#[test]
fn negative_sizes_of_the_old_versions_are_refused() {
    alone(&[TWO_RAILS], || {
        let plugin = common::load(Some(6));
        let net = plugin.init(1, None).unwrap();
        let pair = Pair::open(&net, &net, 0);
        let to = pair.incoming(64);
        let table: &v6::Net = table(c"ncclNetPlugin_v6");
        let (mut data, mut size, mut tag) = (to.start().as_ptr().cast::<c_void>(), -1, 7);
        let (mut mr, mut out) = (to.registration().0, null_mut());
        let (send, recv, plain) = (pair.send.pointer(), pair.recv.pointer(), data);
        let (data, size, tag) = (&raw mut data, &raw mut size, &raw mut tag);
        let (mrs, out) = (&raw mut mr, &raw mut out);
        // SAFETY: as above.
        unsafe {
            refused("regMr", "-1 bytes", || table.reg_mr.unwrap()(send, plain, -1, 1, out));
            refused("isend", "-1 bytes", || table.isend.unwrap()(send, plain, -1, 7, *mrs, out));
            refused("irecv", "-1 bytes", || table.irecv.unwrap()(recv, 1, data, size, tag, mrs, out));
        }
        pair.exchange(1, 1000);
    });
}

#[test]
fn nothing_works_before_init_or_after_the_last_finalize() {
    alone(&[TWO_RAILS], || {
        let plugin = common::load(None);
        let (devices, mut count) = (v12().devices.unwrap(), 0);
        // SAFETY: the count is an int. No logger is set yet.
        assert_eq!(unsafe { devices(&raw mut count) }, NcclResult::INTERNAL_ERROR);
        plugin.init(1, None).unwrap().finalize().unwrap();
        // SAFETY: as above.
        refused("devices", "before init", || unsafe { devices(&raw mut count) });
        Pair::open(&plugin.init(2, None).unwrap(), &plugin.init(3, None).unwrap(), 0).exchange(1, 1000);
    });
}
