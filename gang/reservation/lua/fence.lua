-- Gives the store, which has lost writes, a new name: plans made on what was lost
-- are void. Done once, however many replicas notice.
-- KEYS  meta
-- ARGV  incarnation, its new name
-- gives 1 if it was renamed, else 0
if incarnation(KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'incarnation', ARGV[2])
return 1
