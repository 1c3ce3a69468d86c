-- Reserves room for a whole gang, if no room was taken since the revision.
-- KEYS  meta, feed, gangs, state, need, here
-- ARGV  incarnation, rev, gang, attempt, attempt that it replaces or '', need,
--       hold in ms, body, UIDs of the required members ...
-- gives {'ok', rev, record} | {'conflict', rev} | {'fenced'}
-- Repeated by a caller that missed the answer, it gives the same answer.
local meta, feed, gangs, state, need, here = unpack(KEYS)
local m = redis.call('HMGET', meta, 'incarnation', 'rev', 'taken')
-- A revision that the store has not reached was seen before it lost writes.
if m[1] ~= ARGV[1] or tonumber(ARGV[2]) > tonumber(m[2]) then return {'fenced'} end
local present = redis.call('HMGET', state, 'attempt', 'rev')
if present[1] == ARGV[4] then
	return {'ok', tonumber(present[2]), redis.call('HGET', gangs, ARGV[3])}
end
if tonumber(m[3]) > tonumber(ARGV[2]) or (present[1] or '') ~= ARGV[5] then
	return {'conflict', tonumber(m[2])}
end
local created = now()
local deadline = created + tonumber(ARGV[7])
local phase = 'reserved'
if tonumber(ARGV[6]) == 0 then phase = 'committed' end
local record = phase .. ' ' .. int(created) .. ' ' .. int(deadline) .. '\n' .. ARGV[8]
redis.call('DEL', state, need, here)
for i = 9, #ARGV do redis.call('SADD', need, ARGV[i]) end
redis.call('HSET', state, 'attempt', ARGV[4], 'phase', phase, 'need', ARGV[6], 'deadline', int(deadline))
redis.call('HSET', gangs, ARGV[3], record)
local rev = change(meta, feed, 'op', 'reserve', 'gang', ARGV[3], 'record', record)
redis.call('HSET', state, 'rev', rev)
redis.call('HSET', meta, 'taken', rev)
return {'ok', rev, record}
