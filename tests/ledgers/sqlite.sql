CREATE TABLE load_apps (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	app VARCHAR(190) NOT NULL, 
	checkpoint TEXT, 
	UNIQUE (app)
);
INSERT INTO "load_apps" VALUES(1,'sales',NULL);
INSERT INTO "load_apps" VALUES(2,'orders',NULL);
CREATE TABLE load_batches (
	load_id INTEGER NOT NULL, 
	app VARCHAR(190) NOT NULL, 
	batch BIGINT NOT NULL, 
	drain INTEGER NOT NULL, 
	partition INTEGER NOT NULL, 
	algorithm VARCHAR(190) NOT NULL, 
	reason TEXT, 
	master VARCHAR(190) NOT NULL, 
	master_version VARCHAR(190) NOT NULL, 
	waiting_before BIGINT NOT NULL, 
	rows_read BIGINT NOT NULL, 
	matched BIGINT NOT NULL, 
	unmatched BIGINT NOT NULL, 
	waiting BIGINT NOT NULL, 
	output_rows BIGINT NOT NULL, 
	cache_hits BIGINT NOT NULL, 
	disk_tuples_read BIGINT NOT NULL, 
	bytes_read BIGINT NOT NULL, 
	r_cycles FLOAT NOT NULL, 
	service_rate FLOAT NOT NULL, 
	seconds FLOAT NOT NULL, 
	wait_median FLOAT, 
	wait_longest FLOAT, 
	memory_budget BIGINT NOT NULL, 
	memory_peak BIGINT NOT NULL, 
	resident_peak BIGINT, 
	memory TEXT NOT NULL, 
	rejected TEXT NOT NULL, 
	sides TEXT, 
	nulled TEXT, 
	state_file TEXT NOT NULL, 
	facts_checksum BIGINT, 
	unmatched_checksum BIGINT, 
	key_sketch BLOB, 
	committed_at DATETIME NOT NULL, 
	PRIMARY KEY (load_id)
);
INSERT INTO "load_batches" VALUES(100000000000000,'sales',0,0,0,'meshjoin',NULL,'part','v000001',0,172,0,0,172,58,0,108,5136,0.071475843812045,0.0,3.75218065920005301445e+01,NULL,NULL,100000,100000,185303040,'{"disk buffer": 7120, "H_S": 92880}','{}',NULL,NULL,'000000000-0-0000-068ef58ff49348559ddcb9a661219690',-9112352729660588529,0,NULL,'2026-11-29 04:13:32.000000');
INSERT INTO "load_batches" VALUES(100000000000001,'sales',0,0,1,'meshjoin',NULL,'part','v000001',0,128,0,1,127,5,0,99,4760,6.64875755540631357964e-02,3.80457858282019913062e+02,2.62841199946706183254e-03,3.48962474452882490116e-02,3.48962474452882490116e-02,100000,100000,191168512,'{"disk buffer": 7104, "H_S": 92896}','{"null_key": 1}',NULL,NULL,'000000000-0-0001-112c1b62af8d489191ceaedbec60563e',1286034038628632814,4475599603333921291,NULL,'2026-11-29 04:13:33.000000');
INSERT INTO "load_batches" VALUES(100000000100000,'sales',1,0,0,'meshjoin',NULL,'part','v000001',172,0,0,0,172,0,0,0,0,0.0,0.0,2.77901000117708463221e-04,NULL,NULL,100000,100000,194195456,'{"disk buffer": 7120, "H_S": 92880}','{}',NULL,NULL,'000000000-0-0000-068ef58ff49348559ddcb9a661219690',0,0,NULL,'2026-11-29 04:13:36.000000');
INSERT INTO "load_batches" VALUES(100000000100001,'sales',1,0,1,'meshjoin',NULL,'part','v000001',127,0,0,0,127,0,0,0,0,0.0,0.0,1.3202699983594357036e-04,NULL,NULL,100000,100000,194195456,'{"disk buffer": 7104, "H_S": 92896}','{}',NULL,NULL,'000000000-0-0001-112c1b62af8d489191ceaedbec60563e',0,0,NULL,'2026-11-29 04:13:36.000000');
INSERT INTO "load_batches" VALUES(100000000200000,'sales',2,0,0,'meshjoin',NULL,'part','v000001',172,105,0,0,277,12,0,102,4872,6.75049636002647279742e-02,0.0,4.63104620002923184074e-02,NULL,NULL,100000,100000,194199552,'{"disk buffer": 7120, "H_S": 92880}','{}',NULL,NULL,'000000002-0-0000-0f80d104c42c436c982aa95156d2f276',-7869847939942128259,0,NULL,'2026-11-29 04:13:36.000000');
INSERT INTO "load_batches" VALUES(100000000200001,'sales',2,0,1,'meshjoin',NULL,'part','v000001',127,95,0,0,222,0,0,0,0,0.0,0.0,3.99869099996976729016e-02,NULL,NULL,100000,100000,194207744,'{"disk buffer": 7104, "H_S": 92896}','{}',NULL,NULL,'000000002-0-0001-00f92870983e4e63abdc2f4651537702',0,0,NULL,'2026-11-29 04:13:36.000000');
INSERT INTO "load_batches" VALUES(100000000210000,'sales',2,1,0,'meshjoin',NULL,'part','v000001',277,0,275,2,0,205,0,1511,73248,1.0,2.02556947276620962828e+03,1.36751666000236582476e-01,65.536,65.536,100000,100000,194211840,'{"disk buffer": 7120, "H_S": 92880}','{"no_match": 2}',NULL,NULL,'000000002-1-0000-88b900fb60cb47f7b480fcdf1e307574',5916228429974520854,-137519573840913512,NULL,'2026-11-29 04:13:37.000000');
INSERT INTO "load_batches" VALUES(100000000210001,'sales',2,1,1,'meshjoin',NULL,'part','v000001',222,0,222,0,0,217,0,1489,72328,1.0,913.792540099464,2.4294354599987855181e-01,5.79261875148019811376e+00,5.79261875148019811376e+00,100000,100000,194215936,'{"disk buffer": 7104, "H_S": 92896}','{}',NULL,NULL,'000000002-1-0001-4525461ead4c49c5904ade3be1399d5f',-7725466431732011189,0,NULL,'2026-11-29 04:13:37.000000');
INSERT INTO "load_batches" VALUES(200000000000000,'orders',0,0,0,'pjoin',NULL,'','',0,70,0,1,69,2,0,0,0,0.0,8.35314506035937653916e-02,1.19715387770002052998e+01,NULL,NULL,200000,33121,197447680,'{"disk join": 12464, "directory": 16384, "punctuations": 0, "left": 1917, "right": 2356}','{"null_key": 1}','{"left": {"waiting_before": 0, "rows_read": 31, "matched": 0, "rejected": {}, "waiting": 31, "on_disk": 0, "closed": 0}, "right": {"waiting_before": 0, "rows_read": 39, "matched": 0, "rejected": {"null_key": 1}, "waiting": 38, "on_disk": 0}}',NULL,'000000000-0-0000-890d720c9425434bba58fd2293bde405',-5572579454458728201,8889635117334652635,NULL,'2026-11-29 04:13:50.000000');
INSERT INTO "load_batches" VALUES(200000000000001,'orders',0,0,1,'pjoin',NULL,'','',0,70,0,1,69,2,0,0,0,0.0,1.6265012748961684252e+01,6.14816610004709218628e-02,NULL,NULL,200000,33116,197451776,'{"disk join": 12464, "directory": 16384, "punctuations": 0, "left": 1726, "right": 2542}','{"null_key": 1}','{"left": {"waiting_before": 0, "rows_read": 29, "matched": 0, "rejected": {"null_key": 1}, "waiting": 28, "on_disk": 0, "closed": 0}, "right": {"waiting_before": 0, "rows_read": 41, "matched": 0, "rejected": {}, "waiting": 41, "on_disk": 0}}',NULL,'000000000-0-0001-a3d15f1d5c494f18be89369be81e5b91',-4498288165612766940,-5711052491492959081,NULL,'2026-11-29 04:13:50.000000');
INSERT INTO "load_batches" VALUES(200000000100000,'orders',1,0,0,'pjoin',NULL,'','',69,32,0,0,101,0,0,0,0,0.0,0.0,4.13132290009343705605e-02,NULL,NULL,200000,37140,201408512,'{"disk join": 12464, "directory": 16384, "punctuations": 2048, "left": 3392, "right": 2852}','{}','{"left": {"waiting_before": 31, "rows_read": 24, "matched": 0, "rejected": {}, "waiting": 55, "on_disk": 0, "closed": 0}, "right": {"waiting_before": 38, "rows_read": 8, "matched": 0, "rejected": {}, "waiting": 46, "on_disk": 0}}',NULL,'000000001-0-0000-88e364e6169c469ca90cc5d46922aef1',0,0,NULL,'2026-11-29 04:13:57.000000');
INSERT INTO "load_batches" VALUES(200000000100001,'orders',1,0,1,'pjoin',NULL,'','',69,38,0,1,106,3,0,0,0,0.0,2.88135612733803327502e+02,3.47058800025479285977e-03,NULL,NULL,200000,37457,201416704,'{"disk join": 12464, "directory": 16384, "punctuations": 2048, "left": 3275, "right": 3286}','{"null_key": 1}','{"left": {"waiting_before": 28, "rows_read": 26, "matched": 0, "rejected": {"null_key": 1}, "waiting": 53, "on_disk": 0, "closed": 0}, "right": {"waiting_before": 41, "rows_read": 12, "matched": 0, "rejected": {}, "waiting": 53, "on_disk": 0}}',NULL,'000000001-0-0001-e5634a89608e49fbb93d7bc4bb728642',-3252222467957105740,-6233312773322601983,NULL,'2026-11-29 04:13:58.000000');
INSERT INTO "load_batches" VALUES(200000000110000,'orders',1,1,0,'pjoin',NULL,'','',101,0,4,97,0,0,0,0,0,0.0,1.15059842347178751251e+01,8.77804088199991383589e+00,NULL,NULL,200000,37140,208953344,'{"disk join": 12464, "directory": 16384, "punctuations": 2048, "left": 440, "right": 368}','{"no_partner": 97}','{"left": {"waiting_before": 55, "rows_read": 0, "matched": 2, "rejected": {"no_partner": 53}, "waiting": 0, "on_disk": 0, "closed": 2}, "right": {"waiting_before": 46, "rows_read": 0, "matched": 2, "rejected": {"no_partner": 44}, "waiting": 0, "on_disk": 0}}',NULL,'000000001-1-0000-651864dc0c094e2a97feb73d1a5c023b',0,-7121077398173815356,NULL,'2026-11-29 04:14:07.000000');
INSERT INTO "load_batches" VALUES(200000000110001,'orders',1,1,1,'pjoin',NULL,'','',106,0,9,97,0,0,0,0,0,0.0,9.79168015691171603979e+03,1.08255170002848899457e-02,NULL,NULL,200000,37457,209055744,'{"disk join": 12464, "directory": 16384, "punctuations": 2048, "left": 424, "right": 424}','{"no_partner": 97}','{"left": {"waiting_before": 53, "rows_read": 0, "matched": 4, "rejected": {"no_partner": 49}, "waiting": 0, "on_disk": 0, "closed": 4}, "right": {"waiting_before": 53, "rows_read": 0, "matched": 5, "rejected": {"no_partner": 48}, "waiting": 0, "on_disk": 0}}',NULL,'000000001-1-0001-082b711c83ed49848d215ff0c8ac3019',0,-5701332222213262975,NULL,'2026-11-29 04:14:08.000000');
CREATE UNIQUE INDEX ix_load_batches_load ON load_batches (app, batch, drain, partition);
