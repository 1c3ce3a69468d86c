-- Removes a reservation.
-- KEYS  meta, feed, gangs, state, need, here
-- ARGV  gang, attempt, how, why, resource version of pods at which it has served
--   how: abort   unless it is committed
--        expire  unless it is committed or its time is not up
--        finish  only if it is committed
--        drop    in any case
-- gives {'ok', rev, incarnation} | {'gone'} | {'no'}
local meta, feed, gangs, state, need, here = unpack(KEYS)
local s = redis.call('HMGET', state, 'attempt', 'phase', 'deadline')
local name = incarnation(meta)
if s[1] ~= ARGV[2] or not name then return {'gone'} end
local how, committed = ARGV[3], s[2] == 'committed'
if (how == 'abort' or how == 'expire') and committed then return {'no'} end
if how == 'expire' and now() < tonumber(s[3]) then return {'no'} end
if how == 'finish' and not committed then return {'no'} end
redis.call('DEL', state, need, here)
redis.call('HDEL', gangs, ARGV[1])
raise(meta, 'asof', ARGV[5])
local rev = change(meta, feed, 'op', 'release', 'gang', ARGV[1], 'attempt', ARGV[2], 'how', how, 'why', ARGV[4], 'asof', ARGV[5])
return {'ok', rev, name}
