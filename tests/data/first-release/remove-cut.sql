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
INSERT INTO "journal" VALUES(1,'{"version":1,"id":"b3d3e72f5a93","intent":{"verb":"vgpu create","devices":[],"slicing":{"type":"A2-4C","parent":null,"numa":null,"count":1,"placement":"binpack","uuids":["11111111-2222-4333-8444-555555555555"],"parameters":[],"persistent":true,"shun":[],"instances":[],"vfs":null,"foreign":false},"driver":null,"with_group":false,"allow_boot_vga":false,"stop_services":[],"force_holders":false,"method":null},"facts":[{"address":"0000:08:00.0","identity":"10de:25b6:10de:157e:030200","iommu_group":3,"binding":{"driver":"nvidia","driver_override":null}},{"address":"0000:08:00.6","identity":"10de:25b6:10de:157e:030200","iommu_group":6,"binding":{"driver":"nvidia","driver_override":null}}],"changes":[],"settings":[{"kind":"mdev","name":"11111111-2222-4333-8444-555555555555","address":"11111111-2222-4333-8444-555555555555","before":"","after":"0000:08:00.6/nvidia-754","during":null},{"kind":"definition","name":"/etc/mdevctl.d/0000:08:00.6/11111111-2222-4333-8444-555555555555","address":"11111111-2222-4333-8444-555555555555","before":"","after":"{\n  \"mdev_type\": \"nvidia-754\",\n  \"start\": \"auto\",\n  \"attrs\": []\n}","during":null}],"reset":null,"steps":[{"kind":"write","target":"/sys/class/mdev_bus/0000:08:00.6/mdev_supported_types/nvidia-754/create","value":"11111111-2222-4333-8444-555555555555","why":"the slice is made","address":"11111111-2222-4333-8444-555555555555","may_fail":false},{"kind":"keep","target":"/etc/mdevctl.d/0000:08:00.6/11111111-2222-4333-8444-555555555555","value":"{\n  \"mdev_type\": \"nvidia-754\",\n  \"start\": \"auto\",\n  \"attrs\": []\n}","why":"so that it is made again at boot","address":"11111111-2222-4333-8444-555555555555","may_fail":false}],"viable_groups":[],"cards":["0000:08:00.0"],"notes":["0000:08:00.0 takes 1 of 1 A2-4C: 2 of that size are there; 1 more would fit"]}','done','00000000-0000-4000-8000-000000000011','2026-11-22T05:01:23.171+00:00','2026-11-22T05:01:23.197+00:00','',NULL);
INSERT INTO "journal" VALUES(2,'{"version":1,"id":"efa8b0b1aa96","intent":{"verb":"vgpu remove","devices":[],"slicing":{"type":null,"parent":null,"numa":null,"count":1,"placement":"binpack","uuids":[],"parameters":[],"persistent":false,"shun":[],"instances":["11111111-2222-4333-8444-555555555555"],"vfs":null,"foreign":false},"driver":null,"with_group":false,"allow_boot_vga":false,"stop_services":[],"force_holders":false,"method":null},"facts":[{"address":"0000:08:00.0","identity":"10de:25b6:10de:157e:030200","iommu_group":3,"binding":{"driver":"nvidia","driver_override":null}},{"address":"0000:08:00.6","identity":"10de:25b6:10de:157e:030200","iommu_group":6,"binding":{"driver":"nvidia","driver_override":null}}],"changes":[],"settings":[{"kind":"mdev","name":"11111111-2222-4333-8444-555555555555","address":"11111111-2222-4333-8444-555555555555","before":"0000:08:00.6/nvidia-754","after":"","during":null},{"kind":"definition","name":"/etc/mdevctl.d/0000:08:00.6/11111111-2222-4333-8444-555555555555","address":"11111111-2222-4333-8444-555555555555","before":"{\n  \"mdev_type\": \"nvidia-754\",\n  \"start\": \"auto\",\n  \"attrs\": []\n}","after":"","during":null}],"reset":null,"steps":[{"kind":"check","target":"11111111-2222-4333-8444-555555555555","value":"","why":"what somebody holds is not removed","address":null,"may_fail":false},{"kind":"keep","target":"/etc/mdevctl.d/0000:08:00.6/11111111-2222-4333-8444-555555555555","value":"","why":"so that it does not come back at boot","address":"11111111-2222-4333-8444-555555555555","may_fail":false},{"kind":"write","target":"/sys/bus/mdev/devices/11111111-2222-4333-8444-555555555555/remove","value":"1","why":"the slice goes","address":"11111111-2222-4333-8444-555555555555","may_fail":false}],"viable_groups":[],"cards":["0000:08:00.0"],"notes":[]}','open','00000000-0000-4000-8000-000000000011','2026-11-22T05:01:23.540+00:00',NULL,'',NULL);
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
INSERT INTO "slice" VALUES('11111111-2222-4333-8444-555555555555','0000:08:00.0','0000:08:00.6/nvidia-754',1,'00000000-0000-4000-8000-000000000011','2026-11-22T05:01:23.171+00:00',1);
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
INSERT INTO "under_change" VALUES('11111111-2222-4333-8444-555555555555',2);
COMMIT;
PRAGMA user_version = 3;
