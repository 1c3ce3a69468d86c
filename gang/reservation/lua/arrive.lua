-- Members arrive at the barrier, or say that they are still there. When all that
-- are required are, the gang is committed in the same step.
-- KEYS  meta, feed, gangs, state, need, here
-- ARGV  gang, attempt, lease in ms, UIDs ...
-- gives {'waiting', how many are here} | {'committed'} | {'gone'}
local meta, feed, gangs, state, need, here = unpack(KEYS)
local s = redis.call('HMGET', state, 'attempt', 'phase', 'need')
if s[1] ~= ARGV[2] or not incarnation(meta) then return {'gone'} end
if s[2] == 'committed' then return {'committed'} end
local t = now()
for i = 4, #ARGV do
	-- Surplus members wait as well, and nobody waits for them.
	if redis.call('SISMEMBER', need, ARGV[i]) == 1 then
		redis.call('ZADD', here, int(t + tonumber(ARGV[3])), ARGV[i])
	end
end
redis.call('ZREMRANGEBYSCORE', here, '-inf', int(t))
local n = redis.call('ZCARD', here)
if n < tonumber(s[3]) then return {'waiting', n} end
local record = redis.call('HGET', gangs, ARGV[1])
record = 'committed' .. string.sub(record, string.len('reserved') + 1)
redis.call('HSET', gangs, ARGV[1], record)
redis.call('HSET', state, 'phase', 'committed')
redis.call('DEL', here)
change(meta, feed, 'op', 'commit', 'gang', ARGV[1], 'attempt', ARGV[2])
return {'committed'}
