#!/bin/busybox sh
# The first process of a guest: loads the modules, makes the host's file system the root, with changes only in memory,
# and runs the agent. The agent ends when the lab is gone, and then so does the guest.
b=/bin/busybox
$b mkdir -p /proc /sys /host /change /root
$b mount -t proc proc /proc
while read -r module; do $b insmod "/modules/$module" || echo "cannot load $module"; done </modules/order
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro host /host
$b mount -t tmpfs change /change
$b mkdir /change/upper /change/work
$b mount -t overlay -o lowerdir=/host,upperdir=/change/upper,workdir=/change/work overlay /root
$b mount -t proc proc /root/proc
$b mount -t sysfs sysfs /root/sys
$b mount -t devtmpfs devtmpfs /root/dev
$b mkdir -p /root/dev/shm /root/dev/pts
$b mount -t tmpfs shm /root/dev/shm
$b mount -t devpts devpts /root/dev/pts
$b mount -t tmpfs run /root/run
$b ip link set lo up
$b hostname "guest$lab_guest"
$b chroot /root "$lab_agent" agent
echo "the agent ended with status $?"
echo o >/proc/sysrq-trigger
$b sleep 60
