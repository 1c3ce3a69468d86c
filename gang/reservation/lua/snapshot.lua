-- The whole store at one moment, and where the feed stands then.
-- KEYS  meta, feed, gangs, verdicts
-- gives {incarnation, rev, asof, id of the last entry, {gang, record, ...}, {gang, verdict, ...}}
local m = redis.call('HMGET', KEYS[1], 'incarnation', 'rev', 'asof')
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local id = '0-0'
if #last > 0 then id = last[1][1] end
return {m[1], m[2], m[3], id, redis.call('HGETALL', KEYS[3]), redis.call('HGETALL', KEYS[4])}
