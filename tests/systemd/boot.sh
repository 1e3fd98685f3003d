#!/usr/bin/env bash
# Boots a real systemd as PID 1 in namespaces of its own, on a throw-away overlay of the whole root with STAGE on top, once for each
# script: what the first boot leaves on its disk, the next one finds. Each boot runs one script, then is switched off like a machine
# that loses its power.
#   boot.sh STAGE PACKAGES OUT SCRIPT...
# PACKAGES is seen as /srv/packages, OUT as /srv/out; nothing else that a boot writes outlives this command. LIMIT_S: for each boot.
# Exit code 77: namespaces, overlays or control groups are not permitted here.
#
# NEVER boot systemd on the real root: at boot systemd-tmpfiles empties /tmp. Three guards: the root is an overlay (checked), /tmp is an
# empty tmpfs (checked), and sysinit.target, which would start systemd-tmpfiles, is masked.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
SELF=$(realpath "$0")

# In namespaces of its own: lay the root out, enter it, become systemd.
enter() {
    local script=$1 R=/mnt/root
    mount --make-rprivate /
    mount -t overlay overlay -o "lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work" "$R"
    mount -t tmpfs -o mode=1777 tmpfs "$R/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$R/run"
    mount -t proc proc "$R/proc"
    mount -t sysfs -o ro sysfs "$R/sys"
    mount -t tmpfs -o mode=755 tmpfs "$R/dev"
    for node in null zero full random urandom tty; do
        touch "$R/dev/$node"
        mount --bind "/dev/$node" "$R/dev/$node"
    done
    mkdir "$R/dev/shm" "$R/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$R/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
    ln -s pts/ptmx "$R/dev/ptmx"
    touch "$R/dev/console"
    groups "$R/sys/fs/cgroup"
    mkdir -p "$R/srv/packages" "$R/srv/out" "$R/run/systemd/system"
    mount --bind "$PACKAGES" "$R/srv/packages"
    mount -o remount,bind,ro "$R/srv/packages"
    mount --bind "$OUT" "$R/srv/out"
    units "$R/run/systemd/system" "$script"
    cd "$R"
    mkdir -p mnt/old
    pivot_root . mnt/old
    umount -l /mnt/old
    if [ "$(stat -f -c %T /)" != overlayfs ] || [ "$(stat -f -c %T /tmp)" != tmpfs ] || [ -n "$(ls -A /tmp)" ] ||
        [ "$(readlink /run/systemd/system/sysinit.target)" != /dev/null ]; then
        echo "not isolated" >&2
        exit 9
    fi
    exec env -i container=unshare PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=test.target --log-target=null --show-status=no
}

# The control groups as this machine has them: version 2 alone, or a hybrid, whose controllers are in version 1. The top of a real tree
# is closed to all without CAP_DAC_OVERRIDE (mode 0555); that of a namespace is somebody's child (0755), so it is closed here.
groups() {
    local at=$1 name
    if [ -z "$OLD" ]; then
        mount -t cgroup2 cgroup2 "$at"
        chmod 0555 "$at"
        return
    fi
    mount -t tmpfs -o mode=755 tmpfs "$at"
    mkdir "$at/unified"
    mount -t cgroup2 cgroup2 "$at/unified"
    chmod 0555 "$at/unified"
    for name in $OLD; do
        mkdir "$at/$name"
        if [ "$name" = systemd ]; then
            mount -t cgroup -o none,name=systemd cgroup "$at/$name"
        else
            mount -t cgroup -o "$name" cgroup "$at/$name"
        fi
        chmod 0555 "$at/$name"
    done
}

# The script as a service, and what is different from a real boot: nothing of Debian's own is started.
units() {
    local run=$1 script=$2
    ln -s /dev/null "$run/sysinit.target"
    ln -s /dev/null "$run/network-online.target"
    for unit in controller agent devices workers; do
        mkdir -p "$run/elasticctl-$unit.service.d"
        printf '%s\n' '[Unit]' DefaultDependencies=no '[Service]' WatchdogSec=5 \
            "StandardOutput=append:/srv/out/$unit.log" "StandardError=append:/srv/out/$unit.log" \
            >"$run/elasticctl-$unit.service.d/test.conf"
    done
    sed -i '/WatchdogSec/d' "$run"/elasticctl-{devices,workers}.service.d/test.conf
    printf '%s\n' '[Unit]' DefaultDependencies=no Wants=test.service >"$run/test.target"
    mkdir -p "$run/test.target.wants"
    # What is enabled starts with the machine.
    find "$R/etc/systemd/system/multi-user.target.wants" -name 'elasticctl-*' -exec cp -P {} "$run/test.target.wants/" \; 2>/dev/null || true
    cat >"$run/test.service" <<UNIT
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
Environment=HOME=/root
ExecStart=/usr/bin/env python3 -I $script
StandardOutput=file:/srv/out/test.out
StandardError=file:/srv/out/test.err
ExecStopPost=/bin/sh -c 'echo "\$\${EXIT_STATUS:-none}" > /srv/out/rc'
UNIT
}

# One boot, in a control group that is removed with all that is in it.
boot() {
    local left each
    local -a made=("$GROUPS_AT/elasticctl-boot.$$")
    for each in $OLD; do made+=("/sys/fs/cgroup/$each/elasticctl-boot.$$"); done
    mkdir "${made[@]}"
    # What goes wild inside stays there.
    for each in "${made[@]}"; do if [ -e "$each/pids.max" ]; then echo 2000 >"$each/pids.max"; fi; done
    (
        for each in "${made[@]}"; do echo $BASHPID >"$each/cgroup.procs"; done
        exec unshare --mount --pid --fork --uts --ipc --net --cgroup --kill-child "$BASH" "$SELF" --enter "$1"
    ) >>"$OUT/systemd.log" 2>&1 &
    local machine=$!
    # What waits for the machine leaves its control group: with a process in it no controller could be enabled inside (version 2).
    for ((left = 50; left > 0; left--)); do
        if pgrep --parent $machine >/dev/null; then break; fi
        sleep 0.1
    done
    echo $machine >"$GROUPS_AT/cgroup.procs" || true
    for ((left = LIMIT_S * 10; left > 0; left--)); do
        if [ -e "$OUT/rc" ] || ! kill -0 $machine 2>/dev/null; then break; fi
        sleep 0.1
    done
    if ((left == 0)); then echo "the script has not ended within $LIMIT_S s" >&2; fi
    kill -9 $machine 2>/dev/null || true # the power is lost: with it, all processes of its namespace
    wait $machine 2>/dev/null || true
    for ((left = 50; left > 0; left--)); do
        find "${made[@]}" -depth -type d -exec rmdir {} \; 2>/dev/null || true
        [ -n "$(ls -d "${made[@]}" 2>/dev/null)" ] || break
        sleep 0.1
    done
}


# Where control groups are made; empty: nowhere.
groups_at() {
    local at
    for at in /sys/fs/cgroup/unified /sys/fs/cgroup; do
        if [ -w "$at/cgroup.procs" ] && [ -e "$at/cgroup.controllers" ]; then echo "$at"; fi
    done | head -1
}

# The hierarchies of version 1 that systemd and the agent use; empty: this machine has version 2 alone.
old() {
    local name
    [ -d /sys/fs/cgroup/unified ] || return 0
    for name in systemd memory pids cpu cpuacct devices; do
        if mountpoint -q "/sys/fs/cgroup/$name" && [ ! -L "/sys/fs/cgroup/$name" ]; then echo "$name"; fi
    done
}

permitted() {
    [ -n "$(groups_at)" ] || { echo "no control groups (version 2) can be made here" >&2; return 1; }
    unshare --mount --pid --fork --uts --ipc --net --cgroup "$BASH" -c 'set -e
        mount --make-rprivate /
        mount -t tmpfs tmpfs /mnt
        mkdir /mnt/upper /mnt/work /mnt/root
        mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root' >&2 ||
        { echo "namespaces or overlays are not permitted here" >&2; return 1; }
}

case $1 in
--enter)
    enter "$2"
    ;;
--boots)
    shift
    mount --make-rprivate /
    mount -t tmpfs -o mode=755 tmpfs /mnt
    mkdir /mnt/upper /mnt/work /mnt/root
    # The first boot begins without what somebody did with elasticctl on this machine.
    mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
    rm -rf /mnt/root/{root/.config,root/.local/state,etc,var/lib,var/log}/elasticctl
    cp -a "$STAGE/." /mnt/root/
    chown root:root /mnt/root
    chmod 755 /mnt/root
    umount /mnt/root
    for script; do
        rm -f "$OUT/rc"
        boot "$script"
        if [ "$(cat "$OUT/rc" 2>/dev/null)" != 0 ]; then
            echo "$script: $(cat "$OUT/rc" 2>/dev/null || echo "no end")" >&2
            exit 1
        fi
    done
    ;;
*)
    permitted || exit 77
    STAGE=$(realpath "$1") PACKAGES=$(realpath "$2") OUT=$(realpath "$3") GROUPS_AT=$(groups_at) OLD=$(old) LIMIT_S=${LIMIT_S:-300}
    export STAGE PACKAGES OUT GROUPS_AT OLD LIMIT_S
    shift 3
    exec unshare --mount "$BASH" "$SELF" --boots "$@"
    ;;
esac
