CREATE TABLE `load_apps` (
  `number` bigint(20) NOT NULL AUTO_INCREMENT,
  `app` varchar(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `checkpoint` text DEFAULT NULL,
  PRIMARY KEY (`number`),
  UNIQUE KEY `app` (`app`)
) ENGINE=InnoDB AUTO_INCREMENT=3 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
INSERT INTO `load_apps` VALUES (1,'sales',NULL);
INSERT INTO `load_apps` VALUES (2,'orders',NULL);
CREATE TABLE `load_batches` (
  `load_id` bigint(20) NOT NULL,
  `app` varchar(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `batch` bigint(20) NOT NULL,
  `drain` int(11) NOT NULL,
  `partition` int(11) NOT NULL,
  `algorithm` varchar(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `reason` text DEFAULT NULL,
  `master` varchar(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `master_version` varchar(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `waiting_before` bigint(20) NOT NULL,
  `rows_read` bigint(20) NOT NULL,
  `matched` bigint(20) NOT NULL,
  `unmatched` bigint(20) NOT NULL,
  `waiting` bigint(20) NOT NULL,
  `output_rows` bigint(20) NOT NULL,
  `cache_hits` bigint(20) NOT NULL,
  `disk_tuples_read` bigint(20) NOT NULL,
  `bytes_read` bigint(20) NOT NULL,
  `r_cycles` float NOT NULL,
  `service_rate` float NOT NULL,
  `seconds` float NOT NULL,
  `wait_median` float DEFAULT NULL,
  `wait_longest` float DEFAULT NULL,
  `memory_budget` bigint(20) NOT NULL,
  `memory_peak` bigint(20) NOT NULL,
  `resident_peak` bigint(20) DEFAULT NULL,
  `memory` text NOT NULL,
  `rejected` text NOT NULL,
  `sides` text DEFAULT NULL,
  `nulled` text DEFAULT NULL,
  `state_file` text NOT NULL,
  `facts_checksum` bigint(20) DEFAULT NULL,
  `unmatched_checksum` bigint(20) DEFAULT NULL,
  `key_sketch` blob DEFAULT NULL,
  `committed_at` datetime NOT NULL,
  PRIMARY KEY (`load_id`),
  UNIQUE KEY `ix_load_batches_load` (`app`,`batch`,`drain`,`partition`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
INSERT INTO `load_batches` VALUES (100000000000000,'sales',0,0,0,'meshjoin',NULL,'part','v000001',0,172,0,0,172,58,0,108,5136,0.0714758,0,0.00774156,NULL,NULL,100000,100000,211558400,'{\"disk buffer\": 7120, \"H_S\": 92880}','{}',NULL,NULL,'000000000-0-0000-7914e8309256445d88f3849ff92e7d3d',-9112352729660588529,0,NULL,'2026-11-29 04:14:30');
INSERT INTO `load_batches` VALUES (100000000000001,'sales',0,0,1,'meshjoin',NULL,'part','v000001',0,128,0,1,127,5,0,99,4760,0.0664876,49.0859,0.0203724,0.0905097,0.0905097,100000,100000,211558400,'{\"disk buffer\": 7104, \"H_S\": 92896}','{\"null_key\": 1}',NULL,NULL,'000000000-0-0001-59f4f5a73a7c469ebbff9d33d48e84bd',1286034038628632814,4475599603333921291,NULL,'2026-11-29 04:14:30');
INSERT INTO `load_batches` VALUES (100000000100000,'sales',1,0,0,'meshjoin',NULL,'part','v000001',172,0,0,0,172,0,0,0,0,0,0,0.000110588,NULL,NULL,100000,100000,211558400,'{\"disk buffer\": 7120, \"H_S\": 92880}','{}',NULL,NULL,'000000000-0-0000-7914e8309256445d88f3849ff92e7d3d',0,0,NULL,'2026-11-29 04:14:30');
INSERT INTO `load_batches` VALUES (100000000100001,'sales',1,0,1,'meshjoin',NULL,'part','v000001',127,0,0,0,127,0,0,0,0,0,0,0.000182692,NULL,NULL,100000,100000,211558400,'{\"disk buffer\": 7104, \"H_S\": 92896}','{}',NULL,NULL,'000000000-0-0001-59f4f5a73a7c469ebbff9d33d48e84bd',0,0,NULL,'2026-11-29 04:14:31');
INSERT INTO `load_batches` VALUES (100000000200000,'sales',2,0,0,'meshjoin',NULL,'part','v000001',172,105,0,0,277,12,0,102,4872,0.067505,0,0.0014626,NULL,NULL,100000,100000,211558400,'{\"disk buffer\": 7120, \"H_S\": 92880}','{}',NULL,NULL,'000000002-0-0000-fe86d654fc9d408d9758f698e0b08682',-7869847939942128259,0,NULL,'2026-11-29 04:14:31');
INSERT INTO `load_batches` VALUES (100000000200001,'sales',2,0,1,'meshjoin',NULL,'part','v000001',127,95,0,0,222,0,0,0,0,0,0,0.000343855,NULL,NULL,100000,100000,211558400,'{\"disk buffer\": 7104, \"H_S\": 92896}','{}',NULL,NULL,'000000002-0-0001-f4f5684c8e5e41fa80bba42ea7be0a57',0,0,NULL,'2026-11-29 04:14:31');
INSERT INTO `load_batches` VALUES (100000000210000,'sales',2,1,0,'meshjoin',NULL,'part','v000001',277,0,275,2,0,205,0,1511,73248,1,1807.41,0.153258,2.65593,2.65593,100000,100000,211558400,'{\"disk buffer\": 7120, \"H_S\": 92880}','{\"no_match\": 2}',NULL,NULL,'000000002-1-0000-af48256f4abe406f92779efd8f4b5731',5916228429974520854,-137519573840913512,NULL,'2026-11-29 04:14:32');
INSERT INTO `load_batches` VALUES (100000000210001,'sales',2,1,1,'meshjoin',NULL,'part','v000001',222,0,222,0,0,217,0,1489,72328,1,970.106,0.228841,2.89631,2.89631,100000,100000,211558400,'{\"disk buffer\": 7104, \"H_S\": 92896}','{}',NULL,NULL,'000000002-1-0001-5cbc8cae968a4167bb74589eb0079d62',-7725466431732011189,0,NULL,'2026-11-29 04:14:33');
INSERT INTO `load_batches` VALUES (200000000000000,'orders',0,0,0,'pjoin',NULL,'','',0,70,0,1,69,2,0,0,0,0,41.5549,0.0240645,NULL,NULL,200000,33121,211558400,'{\"disk join\": 12464, \"directory\": 16384, \"punctuations\": 0, \"left\": 1917, \"right\": 2356}','{\"null_key\": 1}','{\"left\": {\"waiting_before\": 0, \"rows_read\": 31, \"matched\": 0, \"rejected\": {}, \"waiting\": 31, \"on_disk\": 0, \"closed\": 0}, \"right\": {\"waiting_before\": 0, \"rows_read\": 39, \"matched\": 0, \"rejected\": {\"null_key\": 1}, \"waiting\": 38, \"on_disk\": 0}}',NULL,'000000000-0-0000-0f14a4cd1ebe49fb8c23af97bb3da141',-5572579454458728201,8889635117334652635,NULL,'2026-11-29 04:14:34');
INSERT INTO `load_batches` VALUES (200000000000001,'orders',0,0,1,'pjoin',NULL,'','',0,70,0,1,69,2,0,0,0,0,466.372,0.00214421,NULL,NULL,200000,33116,211558400,'{\"disk join\": 12464, \"directory\": 16384, \"punctuations\": 0, \"left\": 1726, \"right\": 2542}','{\"null_key\": 1}','{\"left\": {\"waiting_before\": 0, \"rows_read\": 29, \"matched\": 0, \"rejected\": {\"null_key\": 1}, \"waiting\": 28, \"on_disk\": 0, \"closed\": 0}, \"right\": {\"waiting_before\": 0, \"rows_read\": 41, \"matched\": 0, \"rejected\": {}, \"waiting\": 41, \"on_disk\": 0}}',NULL,'000000000-0-0001-f9241694fc904a10b9008d29d1cdb7d7',-4498288165612766940,-5711052491492959081,NULL,'2026-11-29 04:14:35');
INSERT INTO `load_batches` VALUES (200000000100000,'orders',1,0,0,'pjoin',NULL,'','',69,32,0,0,101,0,0,0,0,0,0,0.00170405,NULL,NULL,200000,37140,211558400,'{\"disk join\": 12464, \"directory\": 16384, \"punctuations\": 2048, \"left\": 3392, \"right\": 2852}','{}','{\"left\": {\"waiting_before\": 31, \"rows_read\": 24, \"matched\": 0, \"rejected\": {}, \"waiting\": 55, \"on_disk\": 0, \"closed\": 0}, \"right\": {\"waiting_before\": 38, \"rows_read\": 8, \"matched\": 0, \"rejected\": {}, \"waiting\": 46, \"on_disk\": 0}}',NULL,'000000001-0-0000-b70c45d4be0a4c9596bbe8c3b23c7350',0,0,NULL,'2026-11-29 04:14:36');
INSERT INTO `load_batches` VALUES (200000000100001,'orders',1,0,1,'pjoin',NULL,'','',69,38,0,1,106,3,0,0,0,0,51.5578,0.0193957,NULL,NULL,200000,37457,211558400,'{\"disk join\": 12464, \"directory\": 16384, \"punctuations\": 2048, \"left\": 3275, \"right\": 3286}','{\"null_key\": 1}','{\"left\": {\"waiting_before\": 28, \"rows_read\": 26, \"matched\": 0, \"rejected\": {\"null_key\": 1}, \"waiting\": 53, \"on_disk\": 0, \"closed\": 0}, \"right\": {\"waiting_before\": 41, \"rows_read\": 12, \"matched\": 0, \"rejected\": {}, \"waiting\": 53, \"on_disk\": 0}}',NULL,'000000001-0-0001-e4b0f978b57f45e6885d5bd273c2c449',-3252222467957105740,-6233312773322601983,NULL,'2026-11-29 04:14:36');
INSERT INTO `load_batches` VALUES (200000000110000,'orders',1,1,0,'pjoin',NULL,'','',101,0,4,97,0,0,0,0,0,0,4739.65,0.0213096,NULL,NULL,200000,37140,211558400,'{\"disk join\": 12464, \"directory\": 16384, \"punctuations\": 2048, \"left\": 440, \"right\": 368}','{\"no_partner\": 97}','{\"left\": {\"waiting_before\": 55, \"rows_read\": 0, \"matched\": 2, \"rejected\": {\"no_partner\": 53}, \"waiting\": 0, \"on_disk\": 0, \"closed\": 2}, \"right\": {\"waiting_before\": 46, \"rows_read\": 0, \"matched\": 2, \"rejected\": {\"no_partner\": 44}, \"waiting\": 0, \"on_disk\": 0}}',NULL,'000000001-1-0000-d2bd528c3b7a4473899ab76326fc5a6e',0,-7121077398173815356,NULL,'2026-11-29 04:14:37');
INSERT INTO `load_batches` VALUES (200000000110001,'orders',1,1,1,'pjoin',NULL,'','',106,0,9,97,0,0,0,0,0,0,40284.9,0.00263126,NULL,NULL,200000,37457,211558400,'{\"disk join\": 12464, \"directory\": 16384, \"punctuations\": 2048, \"left\": 424, \"right\": 424}','{\"no_partner\": 97}','{\"left\": {\"waiting_before\": 53, \"rows_read\": 0, \"matched\": 4, \"rejected\": {\"no_partner\": 49}, \"waiting\": 0, \"on_disk\": 0, \"closed\": 4}, \"right\": {\"waiting_before\": 53, \"rows_read\": 0, \"matched\": 5, \"rejected\": {\"no_partner\": 48}, \"waiting\": 0, \"on_disk\": 0}}',NULL,'000000001-1-0001-a9b9dfe0f87849f79950f3696dda3061',0,-5701332222213262975,NULL,'2026-11-29 04:14:37');
