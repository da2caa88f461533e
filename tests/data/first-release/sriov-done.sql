BEGIN TRANSACTION;
CREATE TABLE journal (
        id INTEGER PRIMARY KEY,
        plan TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('open', 'done', 'back', 'stuck', 'rebooted')),
        boot_id TEXT NOT NULL,
        began TEXT NOT NULL,
        ended TEXT,
        why TEXT NOT NULL DEFAULT ''
    , reached INTEGER) STRICT;
INSERT INTO "journal" VALUES(1,'{"version":1,"id":"d8f4fc21bc44","intent":{"verb":"sriov set","devices":["0000:00:02.0"],"slicing":{"type":null,"parent":null,"numa":null,"count":1,"placement":"binpack","uuids":[],"parameters":[],"persistent":true,"shun":[],"instances":[],"vfs":4,"foreign":false},"driver":null,"with_group":false,"allow_boot_vga":false,"stop_services":[],"force_holders":false,"method":null},"facts":[{"address":"0000:00:02.0","identity":"8086:46a6:17aa:22e4:030000","iommu_group":2,"binding":{"driver":"i915","driver_override":null}}],"changes":[],"settings":[{"kind":"VFs","name":"/sys/bus/pci/devices/0000:00:02.0/sriov_numvfs","address":"0000:00:02.0","before":"0","after":"4","during":null},{"kind":"autoprobe","name":"/sys/bus/pci/devices/0000:00:02.0/sriov_drivers_autoprobe","address":"0000:00:02.0","before":"1","after":"1","during":"0"},{"kind":"definition","name":"/etc/vfioctl/vgpu.d/0000:00:02.0.json","address":"0000:00:02.0","before":"","after":"{\n  \"version\": 1,\n  \"device\": \"0000:00:02.0\",\n  \"card\": \"0000:00:02.0\",\n  \"vfs\": 4,\n  \"parameters\": {}\n}","during":null}],"reset":null,"steps":[{"kind":"write","target":"/sys/bus/pci/devices/0000:00:02.0/sriov_drivers_autoprobe","value":"0","why":"so that the VFs find no driver by themselves","address":"0000:00:02.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:00:02.0/sriov_numvfs","value":"4","why":"the VFs come","address":"0000:00:02.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:00:02.0/sriov_drivers_autoprobe","value":"1","why":"as it was before","address":"0000:00:02.0","may_fail":false},{"kind":"keep","target":"/etc/vfioctl/vgpu.d/0000:00:02.0.json","value":"{\n  \"version\": 1,\n  \"device\": \"0000:00:02.0\",\n  \"card\": \"0000:00:02.0\",\n  \"vfs\": 4,\n  \"parameters\": {}\n}","why":"so that it is made again at boot","address":"0000:00:02.0","may_fail":false}],"viable_groups":[],"cards":["0000:00:02.0"],"notes":["the VFs find no drivers by themselves: vfioctl bind hands each to vfio-pci"]}','done','00000000-0000-4000-8000-000000000003','2026-11-22T05:01:24.322+00:00','2026-11-22T05:01:24.347+00:00','',NULL);
CREATE TABLE mark (
        address TEXT PRIMARY KEY,
        kind TEXT NOT NULL CHECK (kind IN ('wedged', 'dead')),
        boot_id TEXT NOT NULL,
        since TEXT NOT NULL,
        why TEXT NOT NULL,
        ticket TEXT NOT NULL DEFAULT ''
    ) STRICT;
CREATE TABLE previous (
        address TEXT PRIMARY KEY,
        identity TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        driver TEXT,
        driver_override TEXT,
        journal INTEGER NOT NULL REFERENCES journal (id)
    ) STRICT;
CREATE TABLE slice (
        id TEXT NOT NULL,
        card TEXT NOT NULL,
        place TEXT NOT NULL,
        kept INTEGER NOT NULL CHECK (kept IN (0, 1)),
        boot_id TEXT NOT NULL,
        since TEXT NOT NULL,
        journal INTEGER NOT NULL REFERENCES journal (id),
        PRIMARY KEY (id, journal)
    ) STRICT;
INSERT INTO "slice" VALUES('0000:00:02.0','0000:00:02.0','4',1,'00000000-0000-4000-8000-000000000003','2026-11-22T05:01:24.322+00:00',1);
CREATE TABLE type_name (
        card TEXT NOT NULL,
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        PRIMARY KEY (card, id)
    ) STRICT;
CREATE TABLE under_change (
        address TEXT PRIMARY KEY,
        journal INTEGER NOT NULL REFERENCES journal (id)
    ) STRICT;
COMMIT;
PRAGMA user_version = 3;
