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
INSERT INTO "journal" VALUES(1,'{"version":1,"id":"b856cdedb05c","intent":{"verb":"vgpu create","devices":[],"slicing":{"type":"L40S-12Q","parent":null,"numa":null,"count":2,"placement":"binpack","uuids":[],"parameters":[["frame_rate_limiter","0"]],"persistent":false,"shun":[],"instances":[],"vfs":null,"foreign":false},"driver":null,"with_group":false,"allow_boot_vga":false,"stop_services":[],"force_holders":false,"method":null},"facts":[{"address":"0000:41:00.0","identity":"10de:26b9:10de:1851:030200","iommu_group":3,"binding":{"driver":"nvidia","driver_override":null}},{"address":"0000:41:00.6","identity":"10de:26b9:10de:0000:030200","iommu_group":6,"binding":{"driver":"nvidia","driver_override":null}},{"address":"0000:41:00.7","identity":"10de:26b9:10de:0000:030200","iommu_group":7,"binding":{"driver":"nvidia","driver_override":null}}],"changes":[],"settings":[{"kind":"vGPU type","name":"/sys/bus/pci/devices/0000:41:00.6/nvidia/current_vgpu_type","address":"0000:41:00.6","before":"0","after":"1153","during":null},{"kind":"parameter","name":"/sys/bus/pci/devices/0000:41:00.6/nvidia/vgpu_params","address":"0000:41:00.6","before":"","after":"frame_rate_limiter=0","during":null},{"kind":"vGPU type","name":"/sys/bus/pci/devices/0000:41:00.7/nvidia/current_vgpu_type","address":"0000:41:00.7","before":"0","after":"1153","during":null},{"kind":"parameter","name":"/sys/bus/pci/devices/0000:41:00.7/nvidia/vgpu_params","address":"0000:41:00.7","before":"","after":"frame_rate_limiter=0","during":null}],"reset":null,"steps":[{"kind":"write","target":"/sys/bus/pci/devices/0000:41:00.6/nvidia/current_vgpu_type","value":"1153","why":"the slice is made","address":"0000:41:00.6","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:41:00.7/nvidia/current_vgpu_type","value":"1153","why":"the slice is made","address":"0000:41:00.7","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:41:00.6/nvidia/vgpu_params","value":"frame_rate_limiter=0","why":"as asked for","address":"0000:41:00.6","may_fail":false},{"kind":"write","target":"/sys/bus/pci/devices/0000:41:00.7/nvidia/vgpu_params","value":"frame_rate_limiter=0","why":"as asked for","address":"0000:41:00.7","may_fail":false}],"viable_groups":[],"cards":["0000:41:00.0"],"notes":["0000:41:00.0 takes 2 of 2 L40S-12Q: 2 of that size are there; no more would fit","parameters are written before any guest has the slice, and go with it"]}','open','00000000-0000-4000-8000-000000000012','2026-11-22T05:01:21.947+00:00',NULL,'',1);
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
INSERT INTO "slice" VALUES('0000:41:00.6','0000:41:00.0','0000:41:00.6/1153',0,'00000000-0000-4000-8000-000000000012','2026-11-22T05:01:21.947+00:00',1);
INSERT INTO "slice" VALUES('0000:41:00.7','0000:41:00.0','0000:41:00.7/1153',0,'00000000-0000-4000-8000-000000000012','2026-11-22T05:01:21.947+00:00',1);
CREATE TABLE type_name (
        card TEXT NOT NULL,
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        PRIMARY KEY (card, id)
    ) STRICT;
INSERT INTO "type_name" VALUES('0000:41:00.0','1145','NVIDIA L40S-1B','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1146','NVIDIA L40S-2B','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1147','NVIDIA L40S-1Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1148','NVIDIA L40S-2Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1149','NVIDIA L40S-3Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1150','NVIDIA L40S-4Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1151','NVIDIA L40S-6Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1152','NVIDIA L40S-8Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1153','NVIDIA L40S-12Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1154','NVIDIA L40S-16Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1155','NVIDIA L40S-24Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1156','NVIDIA L40S-48Q','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1157','NVIDIA L40S-1A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1158','NVIDIA L40S-2A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1159','NVIDIA L40S-3A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1160','NVIDIA L40S-4A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1161','NVIDIA L40S-6A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1162','NVIDIA L40S-8A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1163','NVIDIA L40S-12A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1164','NVIDIA L40S-16A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1165','NVIDIA L40S-24A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','1166','NVIDIA L40S-48A','00000000-0000-4000-8000-000000000012');
INSERT INTO "type_name" VALUES('0000:41:00.0','2164','NVIDIA L40S-3B','00000000-0000-4000-8000-000000000012');
CREATE TABLE under_change (
        address TEXT PRIMARY KEY,
        journal INTEGER NOT NULL REFERENCES journal (id)
    ) STRICT;
INSERT INTO "under_change" VALUES('0000:41:00.6',1);
INSERT INTO "under_change" VALUES('0000:41:00.7',1);
COMMIT;
PRAGMA user_version = 3;
