-- Notes why a gang waits, or with an empty verdict that it does not any more.
-- KEYS  meta, feed, verdicts
-- ARGV  gang, verdict
-- gives {'ok', rev, incarnation} | {'same'} | {'fenced'}
local name = incarnation(KEYS[1])
if not name then return {'fenced'} end
if (redis.call('HGET', KEYS[3], ARGV[1]) or '') == ARGV[2] then return {'same'} end
if ARGV[2] == '' then
	redis.call('HDEL', KEYS[3], ARGV[1])
else
	redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
end
return {'ok', change(KEYS[1], KEYS[2], 'op', 'verdict', 'gang', ARGV[1], 'verdict', ARGV[2]), name}
