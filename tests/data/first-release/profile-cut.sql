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
INSERT INTO "journal" VALUES(1,'{"version":1,"id":"8855bf78e248","intent":{"verb":"sriov profile","devices":["0000:03:00.0"],"slicing":{"type":null,"parent":null,"numa":null,"count":1,"placement":"binpack","uuids":[],"parameters":[["vf2/exec_quantum_ms","10"],["vf1/exec_quantum_ms","11"]],"persistent":false,"shun":[],"instances":[],"vfs":null,"foreign":false},"driver":null,"with_group":false,"allow_boot_vga":false,"stop_services":[],"force_holders":false,"method":null},"facts":[{"address":"0000:03:00.0","identity":"8086:e212:8086:1114:030000","iommu_group":3,"binding":{"driver":"xe","driver_override":null}}],"changes":[],"settings":[{"kind":"profile","name":"/sys/bus/pci/devices/0000:03:00.0/sriov_admin/vf2/profile/exec_quantum_ms","address":"0000:03:00.0","before":"20","after":"10","during":null},{"kind":"profile","name":"/sys/bus/pci/devices/0000:03:00.0/sriov_admin/vf1/profile/exec_quantum_ms","address":"0000:03:00.0","before":"20","after":"11","during":null}],"reset":null,"steps":[{"kind":"write","target":"/sys/bus/pci/devices/0000:03:00.0/sriov_admin/vf2/profile/exec_quantum_ms","value":"10","why":"as asked for","address":"0000:03:00.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:03:00.0/sriov_admin/vf1/profile/exec_quantum_ms","value":"11","why":"as asked for","address":"0000:03:00.0","may_fail":false}],"viable_groups":[],"cards":["0000:03:00.0"],"notes":[]}','open','00000000-0000-4000-8000-000000000015','2026-11-22T05:01:24.700+00:00',NULL,'',NULL);
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
INSERT INTO "under_change" VALUES('0000:03:00.0',1);
COMMIT;
PRAGMA user_version = 3;
