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
# As long as this goes on, the machine runs. A slow run is not ended; a test that does not end is.
watch() {
    local ended seen=none last=$SECONDS
    while sleep 5; do
        echo alive >$results/alive
        ended=$(stat --format=%s $results/ended.txt 2>/dev/null)
        [ "$ended" = "$seen" ] || { seen=$ended last=$SECONDS; }
        if [ $((SECONDS - last)) -gt "$limit" ]; then
            printf "\nlab: no test ended for %s s\n" "$limit"
            touch $lab/no-progress
            kill -TERM "$1" && sleep 5 && kill -KILL "$1"
            limit=$((limit * 1000))
        fi
    done
}
cd "$repo"
"${pytest[@]}" </dev/null &
tests=$!
watch $tests &
wait $tests
status=$?
phase "tests ended"
if [ -e $lab/no-progress ]; then
    status=124
    # who is blocked in the kernel, and where, is what one wants to know of a run that hung
    echo w >/proc/sysrq-trigger
fi
dmesg >$results/dmesg.txt
echo $status >$results/status
exit $status
