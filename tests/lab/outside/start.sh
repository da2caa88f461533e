# Runs first inside the lab: puts the disks over their places, runs pytest, leaves its exit status in the results.
# The variables come from the lines boot.py puts before this.
exec 2>&1
lab=/run/lab
results=$lab/results
phase() { echo "$(date +%s.%N) $1" >>$results/phases.txt; }
phase "first command"
set -e
modprobe squashfs
mkdir -p $lab/environment $lab/sources $lab/upper $lab/work "$repo"
mount -t squashfs -o ro /dev/disk/by-id/virtio-environment $lab/environment
mount -t squashfs -o ro /dev/disk/by-id/virtio-sources $lab/sources
# the repository is writable in the lab; what is written there is gone with it
mount -t overlay -o "lowerdir=$lab/sources/repo,upperdir=$lab/upper,workdir=$lab/work" repo "$repo"
for place in "${places[@]}"; do
    [ -e "$place" ] || mkdir -p "$place"
    mount --bind "$lab/environment$place" "$place"
done
set +e
phase "disks mounted"
# as long as this goes on, the machine runs
while sleep 5; do echo alive >$results/alive; done &
cd "$repo"
timeout --kill-after=5 "$seconds" "${pytest[@]}" </dev/null
status=$?
phase "tests ended"
if [ $status = 124 ] || [ $status = 137 ]; then
    # who is blocked in the kernel, and where, is what one wants to know of a run that hung
    echo w >/proc/sysrq-trigger
fi
dmesg >$results/dmesg.txt
echo $status >$results/status
exit $status
