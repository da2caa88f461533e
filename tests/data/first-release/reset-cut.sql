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
INSERT INTO "journal" VALUES(1,'{"version":1,"id":"a06f829024ab","intent":{"verb":"bind","devices":["0000:41:00.0"],"driver":null,"with_group":false,"allow_boot_vga":false,"stop_services":[],"force_holders":false,"method":null},"facts":[{"address":"0000:41:00.0","identity":"1234:1111:1af4:1100:038000","iommu_group":20,"binding":{"driver":"bochs-drm","driver_override":null}}],"changes":[{"address":"0000:41:00.0","before":{"driver":"bochs-drm","driver_override":null},"after":{"driver":"vfio-pci","driver_override":"vfio-pci"}}],"settings":[{"kind":"power","name":"/sys/bus/pci/devices/0000:41:00.0/power/control","address":"0000:41:00.0","before":"on","after":"on","during":null}],"reset":null,"steps":[{"kind":"load","target":"vfio-pci","value":"","why":"its driver is not registered yet","address":null,"may_fail":false},{"kind":"check","target":"0000:41:00.0","value":"","why":"what somebody holds is not taken","address":null,"may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:41:00.0/driver_override","value":"vfio-pci","why":"so that no other driver can take it","address":"0000:41:00.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/drivers/bochs-drm/unbind","value":"0000:41:00.0","why":"bochs-drm lets go of it","address":"0000:41:00.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/drivers_probe","value":"0000:41:00.0","why":"vfio-pci takes it","address":"0000:41:00.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:41:00.0/power/control","value":"on","why":"vfio-pci would let it sleep while it is idle","address":"0000:41:00.0","may_fail":false}],"viable_groups":[20],"notes":[]}','done','00000000-0000-0000-0000-000000000001','2026-11-22T05:01:21.215+00:00','2026-11-22T05:01:21.238+00:00','',NULL);
INSERT INTO "journal" VALUES(2,'{"version":1,"id":"fddf4c56d041","intent":{"verb":"reset","devices":["0000:41:00.0"],"driver":null,"with_group":false,"allow_boot_vga":false,"stop_services":[],"force_holders":false,"method":null},"facts":[{"address":"0000:41:00.0","identity":"1234:1111:1af4:1100:038000","iommu_group":20,"binding":{"driver":"vfio-pci","driver_override":"vfio-pci"}}],"changes":[{"address":"0000:41:00.0","before":{"driver":"vfio-pci","driver_override":"vfio-pci"},"after":{"driver":"vfio-pci","driver_override":"vfio-pci"}}],"settings":[],"reset":"/sys/bus/pci/devices/0000:41:00.0/reset","steps":[{"kind":"check","target":"0000:41:00.0","value":"","why":"what somebody holds is not taken","address":null,"may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:41:00.0/reset","value":"1","why":"the kernel resets it","address":"0000:41:00.0","may_fail":false}],"viable_groups":[],"notes":["0000:41:00.0 is reset by bus: what is in it is lost"]}','open','00000000-0000-0000-0000-000000000001','2026-11-22T05:01:21.614+00:00',NULL,'',NULL);
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
INSERT INTO "previous" VALUES('0000:41:00.0','1234:1111:1af4:1100:038000','00000000-0000-0000-0000-000000000001','bochs-drm',NULL,1);
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
INSERT INTO "under_change" VALUES('0000:41:00.0',2);
COMMIT;
PRAGMA user_version = 3;
