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
INSERT INTO "journal" VALUES(1,'{"version":1,"id":"751f040768a4","intent":{"verb":"bind","devices":["0000:1b:00.0"],"driver":null,"with_group":false,"allow_boot_vga":false,"stop_services":[],"force_holders":false,"method":null},"facts":[{"address":"0000:1b:00.0","identity":"10de:2330:10de:16c1:030200","iommu_group":21,"binding":{"driver":"nvidia","driver_override":null}}],"changes":[{"address":"0000:1b:00.0","before":{"driver":"nvidia","driver_override":null},"after":{"driver":"vfio-pci","driver_override":"vfio-pci"}}],"settings":[{"kind":"power","name":"/sys/bus/pci/devices/0000:1b:00.0/power/control","address":"0000:1b:00.0","before":"on","after":"on","during":null},{"kind":"d3cold","name":"/sys/bus/pci/devices/0000:1b:00.0/d3cold_allowed","address":"0000:1b:00.0","before":"1","after":"0","during":null},{"kind":"persistence","name":"0000:1b:00.0","address":"0000:1b:00.0","before":"1","after":"0","during":null}],"reset":null,"steps":[{"kind":"load","target":"vfio-pci","value":"","why":"its driver is not registered yet","address":null,"may_fail":false},{"kind":"persistence","target":"0000:1b:00.0","value":"0","why":"persistence mode would keep the GPU open","address":"0000:1b:00.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:1b:00.0/d3cold_allowed","value":"0","why":"from D3cold some devices never wake","address":"0000:1b:00.0","may_fail":false},{"kind":"check","target":"0000:1b:00.0","value":"","why":"what somebody holds is not taken","address":null,"may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:1b:00.0/driver_override","value":"vfio-pci","why":"so that no other driver can take it","address":"0000:1b:00.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/drivers/nvidia/unbind","value":"0000:1b:00.0","why":"nvidia lets go of it","address":"0000:1b:00.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/drivers_probe","value":"0000:1b:00.0","why":"vfio-pci takes it","address":"0000:1b:00.0","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:1b:00.0/power/control","value":"on","why":"vfio-pci would let it sleep while it is idle","address":"0000:1b:00.0","may_fail":false}],"viable_groups":[21],"notes":[]}','stuck','00000000-0000-4000-8000-000000000001','2026-11-22T05:01:19.976+00:00','2026-11-22T05:01:20.030+00:00','writing ''0000:1b:00.0'' to /sys/bus/pci/drivers/nvidia/unbind did not return',NULL);
CREATE TABLE mark (
        address TEXT PRIMARY KEY,
        kind TEXT NOT NULL CHECK (kind IN ('wedged', 'dead')),
        boot_id TEXT NOT NULL,
        since TEXT NOT NULL,
        why TEXT NOT NULL,
        ticket TEXT NOT NULL DEFAULT ''
    ) STRICT;
INSERT INTO "mark" VALUES('0000:1b:00.0','wedged','00000000-0000-4000-8000-000000000001','2026-11-22T05:01:20.031+00:00','writing ''0000:1b:00.0'' to /sys/bus/pci/drivers/nvidia/unbind did not return','sim:0000:1b:00.0');
CREATE TABLE previous (
        address TEXT PRIMARY KEY,
        identity TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        driver TEXT,
        driver_override TEXT,
        journal INTEGER NOT NULL REFERENCES journal (id)
    ) STRICT;
INSERT INTO "previous" VALUES('0000:1b:00.0','10de:2330:10de:16c1:030200','00000000-0000-4000-8000-000000000001','nvidia',NULL,1);
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
INSERT INTO "under_change" VALUES('0000:1b:00.0',1);
COMMIT;
PRAGMA user_version = 3;
